package attribution

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine bounds lines, in bytes. The longest hold certificates.
const maxLine = 64 << 10

// tail is how much of the end of a file is looked at, in bytes. More than an agent writes between two times
// that it has the disk take everything.
const tail = 8 << 20

// end describes the end of a file that is there when an agent starts.
type end struct {
	path string
	// first and last are the file's lines; nil if it has none that is ours.
	first, last *line
	foreign     bool  // there is something else
	hash        hash  // of last
	whole       int64 // bytes of whole lines
	dropped     int64 // bytes after that: what a crash left of others
}

// readEnd reads the first line of a file and the last that is whole. After a power cut a file may end in
// anything, such as half a line or zeros. The error is the file system's.
func readEnd(path string) (end, error) {
	e := end{path: path}
	file, err := os.Open(path)
	if err != nil {
		return e, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return e, err
	}
	size := info.Size()
	head, err := readAt(file, 0, min(size, maxLine))
	if err != nil {
		return e, err
	}
	first, _, found := bytes.Cut(head, []byte{'\n'})
	if !found && size < maxLine { // an agent died in its first line
		e.dropped = size
		return e, nil
	}
	if e.first = parse(first); e.first == nil {
		e.foreign = true
		return e, nil
	}
	from := max(0, size-tail)
	last, err := readAt(file, from, size-from)
	if err != nil {
		return e, err
	}
	for stop := bytes.LastIndexByte(last, '\n'); stop > 0; stop = bytes.LastIndexByte(last[:stop], '\n') {
		start := bytes.LastIndexByte(last[:stop], '\n') + 1
		if e.last = parse(last[start:stop]); e.last != nil {
			e.hash = hashOf(last[start:stop])
			e.whole = from + int64(stop) + 1
			e.dropped = size - e.whole
			break
		}
	}
	return e, nil
}

func readAt(file *os.File, from, n int64) ([]byte, error) {
	data := make([]byte, n)
	if _, err := file.ReadAt(data, from); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}

// parse is nil for what is no line of a chain.
func parse(text []byte) *line {
	var l line
	if json.Unmarshal(text, &l) != nil || l.Event == "" || l.Prev.IsZero() && l.N > 0 {
		return nil
	}
	return &l
}

// none says that there is no line.
func (e end) none() bool { return e.first == nil && !e.foreign }

// of reports whether the author's next line may follow.
func (e end) of(a *Author) bool {
	f := e.first
	return f != nil && e.last != nil && f.Event == fileBegan && f.Format == format && f.Collective == a.Collective && f.Waypoint == a.Waypoint
}

// mend removes what a crash left of a line.
func (e end) mend(a *Author) error {
	if e.dropped == 0 || !e.of(a) && !e.none() {
		return nil
	}
	if err := os.Truncate(e.path, e.whole); err != nil {
		return fmt.Errorf("remove half a line: %w", err)
	}
	return nil
}

// chain goes on after the last line.
func (e end) chain() chain {
	c := chain{log: e.first.Log, began: e.first.Began, next: e.last.N + 1, prev: e.hash}
	if e.last.Event != headSigned && e.last.Event != logClosed {
		c.unsigned = 1
	}
	c.resumed = &line{Entry: Entry{Event: logResumed}, Unclean: e.last.Event != logClosed}
	return c
}
