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

// File is one file of a log. Name is what it is called in reports.
type File struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// OpenFile is a file by its path.
func OpenFile(path string) File {
	return File{Name: path, Open: func() (io.ReadCloser, error) { return os.Open(path) }}
}

// FilesOf are the files of the log that a waypoint writes at path, those that there are.
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

// text is one line as it stands in a file.
type text struct {
	file   string
	number int // from 1
	bytes  []byte
	whole  bool  // ended by a newline
	line   *line // nil: it cannot be understood
}

func (t *text) place() string { return fmt.Sprintf("%s:%d", t.file, t.number) }

// eachLine calls each for every line of the files, the oldest first. What it is given is good until it
// returns.
func eachLine(files []File, each func(*text)) error {
	return eachText(files, func(t *text) {
		t.line = parse(t.bytes)
		each(t)
	})
}

// eachText does so before lines are understood, which is what takes time.
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
		// A line longer than any of ours comes in pieces, none of which can be understood.
		t.line = nil
		each(&t)
	}
}

// source is a file that is being read.
type source struct {
	io.Closer
	name  string
	in    *bufio.Reader
	first line // that can be understood: it says where the file's lines stand in the log
}

// openAll opens all files before any is read to its end: an agent may rename them at any time, and what is open
// stays what it is. What is returned with an error is open as well.
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
