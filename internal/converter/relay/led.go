package relay

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
)

// ledName is the name under which a file with the servers of connections is handed over.
const ledName = "servers of connections"

// led remembers for which server each connection to a converter is. It is not told when a connection ends: another one with
// the same ends takes its place.
type led struct {
	mu      sync.Mutex
	servers *known.Map[Ends, netip.AddrPort]
	// next is a file for the relay that takes over; nil: none has. What is noted afterwards follows in it, for connections
	// that were being made at that moment.
	next *os.File
	// before is such a file of the relay before; nil: there is none. read bytes of it are taken over.
	before *os.File
	read   int64
}

// ledNote is a line of such a file, in JSON.
type ledNote struct {
	Ends
	Server netip.AddrPort `json:"server"`
}

func newLed() *led { return &led{servers: known.NewMap[Ends, netip.AddrPort](ledMost)} }

// note implements client.Config.Led.
func (l *led) note(local, converter, server netip.AddrPort) {
	if !local.IsValid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := ledNote{Ends{unmapped(local), unmapped(converter)}, unmapped(server)}
	l.set(n)
	if l.next != nil {
		_ = write(l.next, n) // otherwise the status does not name the connection's server
	}
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

// handOver returns the descriptor of a file for the relay that takes over.
func (l *led) handOver() (fd int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeOver()
	if fd, err = unix.MemfdCreate("dcol-servers", unix.MFD_CLOEXEC); err != nil {
		return -1, err
	}
	file := os.NewFile(uintptr(fd), ledName)
	var notes []ledNote
	for e, server := range l.servers.All(time.Now()) {
		notes = append(notes, ledNote{e, server})
	}
	slices.Reverse(notes) // the most recent last, as they were noted
	if err := write(file, notes...); err != nil {
		file.Close()
		return -1, err
	}
	l.next = file
	return fd, nil
}

// inherit takes over the file of the relay before.
func (l *led) inherit(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = os.NewFile(uintptr(fd), ledName)
	l.takeOver()
}

// takeOver reads what the relay before has noted meanwhile.
func (l *led) takeOver() {
	if l.before == nil {
		return
	}
	text, err := io.ReadAll(io.NewSectionReader(l.before, l.read, 1<<62))
	if err != nil {
		return
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // a line may be incomplete
	l.read += int64(len(text))
	for line := range bytes.Lines(text) {
		var n ledNote
		if json.Unmarshal(line, &n) == nil {
			l.set(n)
		}
	}
}

func write(file *os.File, notes ...ledNote) error {
	var text []byte
	for _, n := range notes {
		line, err := json.Marshal(n)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	_, err := file.Write(text)
	return err
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
