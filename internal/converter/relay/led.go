package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/converter/known"
)

// Ends are the two ends of a connection to a converter, as this host's kernel names them.
type Ends struct {
	Local     netip.AddrPort `json:"local"`
	Converter netip.AddrPort `json:"converter"`
}

const (
	ledMost = 16 << 10
	ledFor  = 30 * 24 * time.Hour
	// ledFile is the name of the file that is written, and ledFileBefore that of the one before it.
	ledFile, ledFileBefore = "relay.servers", "relay.servers.before"
	// ledFileMost is the size in bytes at which a file is full. Both together have the notes of some 16,000 connections.
	ledFileMost = 1 << 20
)

// led remembers for which server each connection to a converter is. It is not told when a connection ends: another one with
// the same ends takes its place.
//
// It keeps its notes in files, too. Programs' own connections do not end with the relay, and the next relay needs to know
// them, whether this one is killed or hands over. One that hands over goes on to write, about connections that were being
// made at that moment.
type led struct {
	mu      sync.Mutex
	servers *known.Map[Ends, netip.AddrPort]
	dir     string
	file    *os.File // nil: notes are not kept
	read    int64    // bytes of file whose notes are in servers
}

// ledNote is a line of a file, in JSON.
type ledNote struct {
	Ends
	Server netip.AddrPort `json:"server"`
}

// openLed returns a led that has the notes of earlier relays with the same folder. After an error, it knows and keeps none.
func openLed(dir string) (*led, error) {
	l := &led{servers: known.NewMap[Ends, netip.AddrPort](ledMost), dir: dir}
	before, err := os.ReadFile(filepath.Join(dir, ledFileBefore))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	l.take(before)
	if err := l.open(); err != nil {
		return l, err
	}
	l.takeOver()
	return l, nil
}

func (l *led) open() (err error) {
	l.read = 0
	l.file, err = os.OpenFile(filepath.Join(l.dir, ledFile), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	return err
}

// note implements client.Config.Led.
func (l *led) note(local, converter, server netip.AddrPort) {
	if !local.IsValid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := ledNote{Ends{unmapped(local), unmapped(converter)}, unmapped(server)}
	l.set(n)
	l.write(n)
}

// write keeps a note. If that fails, the status will not name the connection's server after the end of this relay.
func (l *led) write(n ledNote) {
	if l.file == nil {
		return
	}
	line, err := json.Marshal(n)
	if err != nil {
		return
	}
	written, err := l.file.Write(append(line, '\n'))
	if err != nil {
		return
	}
	end, err := l.file.Seek(0, io.SeekCurrent)
	if err == nil && end == l.read+int64(written) {
		l.read = end // no other relay has written meanwhile
	}
	if end > ledFileMost {
		_ = l.beginFile()
	}
}

// beginFile begins another file. If another relay has done so already, it goes on with that one.
func (l *led) beginFile() error {
	path := filepath.Join(l.dir, ledFile)
	own, err := l.file.Stat()
	l.file.Close()
	l.file = nil
	if err != nil {
		return err
	}
	if present, err := os.Stat(path); err == nil && os.SameFile(own, present) {
		if err := os.Rename(path, filepath.Join(l.dir, ledFileBefore)); err != nil {
			return err
		}
	}
	return l.open()
}

func (l *led) set(n ledNote) { l.servers.Set(n.Ends, n.Server, time.Now().Add(ledFor)) }

// find returns the server of each connection; the zero AddrPort if it is not known.
func (l *led) find(list []Ends) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeOver()
	servers := make([]netip.AddrPort, len(list))
	for i, e := range list {
		servers[i], _ = l.servers.Get(e, time.Now())
	}
	return servers
}

// takeOver reads what the relay before has written meanwhile.
func (l *led) takeOver() {
	if l.file == nil {
		return
	}
	text, err := io.ReadAll(io.NewSectionReader(l.file, l.read, 2*ledFileMost))
	if err != nil {
		return
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // a line may be incomplete
	l.read += int64(len(text))
	l.take(text)
}

// take takes over the notes of a file.
func (l *led) take(text []byte) {
	for line := range bytes.Lines(text) {
		var n ledNote
		if json.Unmarshal(line, &n) == nil {
			l.set(n)
		}
	}
}

// close ends the writing of notes. The files stay.
func (l *led) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// Forget removes what relays with this folder have written for the next ones. None may run.
func Forget(dir string) error {
	for _, name := range []string{ledFile, ledFileBefore} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the servers of connections: %w", err)
		}
	}
	return nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
