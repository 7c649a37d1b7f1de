package attribution

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// File is one file of a log. Reports use Name.
type File struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// OpenFile returns the File for a path.
func OpenFile(path string) File {
	return File{Name: path, Open: func() (io.ReadCloser, error) { return os.Open(path) }}
}

// FilesOf returns the existing files of the log that a waypoint writes at path.
func FilesOf(path string) ([]File, error) {
	var files []File
	for i := range DefaultLimits.Files {
		name := aside(path, i)
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("look for the files of the log: %w", err)
		}
		files = append(files, OpenFile(name))
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there is no log at %s", path)
	}
	return files, nil
}

// text is a line as it is in a file.
type text struct {
	file   string
	number int // beginning with 1
	bytes  []byte
	whole  bool  // ended by a newline
	line   *line // nil: it cannot be decoded
}

func (t *text) place() string { return fmt.Sprintf("%s:%d", t.file, t.number) }

// eachLine calls each for every line of the files, the oldest first. Its argument is valid only during the call.
func eachLine(files []File, each func(*text)) error {
	return eachText(files, func(t *text) {
		t.line = parse(t.bytes)
		each(t)
	})
}

// eachText is like eachLine, but does not decode the lines, which takes most of the time.
func eachText(files []File, each func(*text)) error {
	sources, err := openAll(files)
	defer func() {
		for _, f := range sources {
			_ = f.Close()
		}
	}()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	slices.SortStableFunc(sources, func(a, b *source) int {
		return cmp.Or(a.first.Began.Compare(b.first.Began), cmp.Compare(a.first.N, b.first.N))
	})
	for _, f := range sources {
		if err := f.each(each); err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
	}
	return nil
}

func (f *source) each(each func(*text)) error {
	for t := (text{file: f.name, number: 1}); ; t.number++ {
		var err error
		t.bytes, err = f.in.ReadSlice('\n')
		if len(t.bytes) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if t.whole = err == nil; t.whole {
			t.bytes = t.bytes[:len(t.bytes)-1]
		}
		// A line that is longer than any of ours arrives in parts, which cannot be decoded.
		t.line = nil
		each(&t)
	}
}

// source is an open file.
type source struct {
	io.Closer
	name  string
	in    *bufio.Reader
	first line // the first that can be decoded; it determines the file's position in the log
}

// openAll opens all files before reading them, because an agent may rename them at any time. On an error it also returns
// the files that are open.
func openAll(files []File) (sources []*source, err error) {
	for _, f := range files {
		r, err := f.Open()
		if err != nil {
			return sources, err
		}
		s := &source{Closer: r, name: f.Name, in: bufio.NewReaderSize(r, maxLine)}
		sources = append(sources, s)
		begin, err := s.in.Peek(maxLine)
		if err != nil && !errors.Is(err, io.EOF) {
			return sources, fmt.Errorf("%s: %w", f.Name, err)
		}
		for first := range bytes.Lines(begin) {
			if l := parse(first); l != nil {
				s.first = *l
				break
			}
		}
	}
	return sources, nil
}
