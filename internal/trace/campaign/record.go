package campaign

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// Schema is the version of a Record.
const Schema = "dcol.trace-campaign/1"

// Record is the result for one destination: a line of the file.
type Record struct {
	Schema string    `json:"schema"`
	Time   time.Time `json:"time"`
	Name   string    `json:"name"` // as in the list
	// From names the vantage point.
	From  string         `json:"from,omitempty"`
	Trace *present.Trace `json:"trace,omitempty"`
	// Skipped and Error explain why there is no trace.
	Skipped string `json:"skipped,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Check returns an error if a record cannot be from a campaign. Files and other members may claim anything, and figures
// must not take impossible numbers.
func (r *Record) Check() error {
	if r.Schema != Schema || r.Name == "" {
		return fmt.Errorf("it is no record of %s", Schema)
	}
	t := r.Trace
	if t == nil {
		return nil
	}
	hop := func(d int) bool { return d >= 0 && d <= trace.MaxHops }
	if !hop(t.Distance) || t.Sent < 0 || len(t.Hops) > trace.MaxHops {
		return fmt.Errorf("a trace with %d hops and %d packets, to distance %d", len(t.Hops), t.Sent, t.Distance)
	}
	for _, h := range t.Hops {
		if !hop(h.Distance) {
			return fmt.Errorf("a hop at distance %d", h.Distance)
		}
	}
	for _, f := range t.Findings {
		if !hop(f.After) || !hop(f.By) || f.After >= f.By {
			return fmt.Errorf("a change between hops %d and %d", f.After, f.By)
		}
	}
	return nil
}

// maxRecord is the longest line of a file: a trace of 255 hops with 8 quotes each.
const maxRecord = 4 << 20

// Read reads records, and counts lines that are not records.
func Read(r io.Reader, take func(*Record)) (damaged int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxRecord)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var one Record
		if json.Unmarshal(line, &one) != nil || one.Check() != nil {
			damaged++
			continue
		}
		take(&one)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return damaged, fmt.Errorf("a line is longer than %d bytes: it is no file of a campaign", maxRecord)
	}
	return damaged, lines.Err()
}

// Done identifies a destination for which a vantage point has a result.
type Done struct{ From, Name string }

// File is a campaign's file of results.
type File struct {
	mu sync.Mutex
	f  *os.File
	// Done has the destinations with a result.
	Done map[Done]bool
	// Probed has the names by which addresses were traced, by vantage point.
	Probed  map[string]map[netip.Addr]string
	Damaged int // lines, as a power cut leaves them
}

// ErrInUse is the error of a file to which another campaign writes.
var ErrInUse = errors.New("another campaign writes to it")

// OpenFile opens a file to add results to, and reads which it has. A last line without its end is left alone.
func OpenFile(path string) (_ *File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	} else if err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	file := &File{f: f, Done: map[Done]bool{}, Probed: map[string]map[netip.Addr]string{}}
	if file.Damaged, err = Read(f, file.note); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(file.Done) == 0 && file.Damaged > 0 {
		return nil, fmt.Errorf("%s is no file of a campaign: choose another name", path)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return file, err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], end-1); err != nil {
		return nil, err
	}
	if last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return file, err
}

// note remembers a record that the file has.
func (f *File) note(r *Record) {
	f.Done[Done{r.From, r.Name}] = true
	if r.Trace == nil {
		return
	}
	addr, err := netip.ParseAddr(r.Trace.Destination)
	if err != nil {
		return // of another program; nothing is known to have been probed
	}
	if f.Probed[r.From] == nil {
		f.Probed[r.From] = map[netip.Addr]string{}
	}
	f.Probed[r.From][addr] = r.Name
}

// Add adds a record.
func (f *File) Add(r *Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("add a result: %w", err)
	}
	return nil
}

// Close closes the file.
func (f *File) Close() error { return errors.Join(f.f.Sync(), f.f.Close()) }
