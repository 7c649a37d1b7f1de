package attribution

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine is the maximum length of a line in bytes. The longest lines contain certificates.
const maxLine = 64 << 10

// tail is how much of the end of a file is read, in bytes. It exceeds what an agent writes between two syncs.
const tail = 8 << 20

// end describes the end of an existing file when an agent starts.
type end struct {
	path string
	// first and last are lines of the file, or nil if it has none of ours.
	first, last *line
	foreign     bool  // the file has other content
	hash        hash  // of last
	whole       int64 // bytes of complete lines
	dropped     int64 // bytes after that, left by a crash
}

// readEnd reads the first and the last complete line of a file. After a power cut a file may end with arbitrary
// bytes, such as a partial line or zeros. Errors are those of the file system.
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

// parse returns nil if text is not a line of a chain.
func parse(text []byte) *line {
	var l line
	if json.Unmarshal(text, &l) != nil || l.Event == "" || l.Prev.IsZero() && l.N > 0 {
		return nil
	}
	return &l
}

// none reports whether the file has no line.
func (e end) none() bool { return e.first == nil && !e.foreign }

// of reports whether the author's next line may follow.
func (e end) of(a *Author) bool {
	f := e.first
	return f != nil && e.last != nil && f.Event == fileBegan && f.Format == format && f.Collective == a.Collective && f.Waypoint == a.Waypoint
}

// repair removes a partial line that a crash left.
func (e end) repair(a *Author) error {
	if e.dropped == 0 || !e.of(a) && !e.none() {
		return nil
	}
	if err := os.Truncate(e.path, e.whole); err != nil {
		return fmt.Errorf("remove half a line: %w", err)
	}
	return nil
}

// chain returns the state after the last line.
func (e end) chain() chain {
	c := chain{log: e.first.Log, began: e.first.Began, next: e.last.N + 1, prev: e.hash}
	if e.last.Event != headSigned && e.last.Event != logClosed {
		c.unsigned = 1
	}
	c.resumed = &line{Entry: Entry{Event: logResumed}, Unclean: e.last.Event != logClosed}
	return c
}
