package capture

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// Stdin as a path stands for the standard input.
const Stdin = "-"

// Merged reads several files as one capture, in the order of time. It opens a file only when the time of the file's
// first packet has come, so that thousands of rotated files need few descriptors.
type Merged struct {
	waiting  []*source // by the time of their first packet
	open     []*source
	current  *source // its head was returned by the last Next
	problems []Problem
}

// source is a file whose next packet is known.
type source struct {
	path   string
	file   *os.File
	reader *Reader
	head   Packet
	first  int64
}

// errEmpty is the problem of a file without a byte. tcpdump writes the file header late, so the newest of rotated
// files may be empty.
var errEmpty = errors.New("it is empty: it has no packets, and not even the file header of a capture")

// Open sorts files by their first packets. An unreadable file is an error. An empty or damaged file is a Problem, or an
// error if all files are empty or damaged. A capture may have no packets.
func Open(paths []string) (*Merged, error) {
	m := new(Merged)
	var problems []error
	for i, path := range paths {
		if path == Stdin && slices.Contains(paths[:i], Stdin) {
			m.Close()
			return nil, errors.New("the standard input (-) can be read only once")
		}
		s := &source{path: path}
		err := s.start()
		switch problem := (Problem{}); {
		case errors.Is(err, io.EOF):
			s.close()
			continue
		case errors.As(err, &problem):
			s.close()
			m.problems, problems = append(m.problems, problem), append(problems, problem)
			continue
		case err != nil:
			s.close()
			m.Close()
			return nil, err
		}
		s.first = s.head.Time
		if info, err := s.file.Stat(); err == nil && info.Mode().IsRegular() && path != Stdin && len(paths) > 1 {
			s.close() // until its time comes
		}
		m.waiting = append(m.waiting, s)
	}
	if len(problems) == len(paths) {
		return nil, errors.Join(problems...)
	}
	slices.SortStableFunc(m.waiting, func(a, b *source) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		}
		return 0
	})
	return m, nil
}

// nameOf returns how messages call a file.
func nameOf(path string) string {
	if path == Stdin {
		return "the standard input"
	}
	return path
}

// start opens the file and reads its first packet.
func (s *source) start() error {
	s.file = os.Stdin
	if s.path != Stdin {
		var err error
		if s.file, err = os.Open(s.path); err != nil {
			return err
		}
		if info, err := s.file.Stat(); err == nil && info.IsDir() {
			return fmt.Errorf("%s is a folder; give the files in it", s.path)
		}
	}
	var err error
	switch s.reader, err = NewReader(s.file); {
	case errors.Is(err, io.EOF):
		return Problem{s.path, errEmpty}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Problem{s.path, err}
	case err != nil:
		return fmt.Errorf("%s: %w", nameOf(s.path), err)
	}
	return s.advance()
}

// advance reads the next packet. Damage is returned as a Problem.
func (s *source) advance() error {
	err := s.reader.Next(&s.head)
	if err != nil && !errors.Is(err, io.EOF) {
		return Problem{s.path, err}
	}
	return err
}

func (s *source) close() {
	if s.reader != nil {
		s.reader.Close()
		s.reader = nil
	}
	if s.file != nil {
		if s.path != Stdin {
			_ = s.file.Close()
		}
		s.file = nil
	}
}

// Next returns the next packet, valid until the next call, or nil at the end.
func (m *Merged) Next() *Packet {
	if s := m.current; s != nil {
		if err := s.advance(); err != nil {
			m.end(s, err)
		}
		m.current = nil
	}
	var next *source
	earliest := int64(math.MaxInt64)
	if len(m.open) == 1 {
		next = m.open[0]
		earliest = next.head.Time
	} else {
		for _, s := range m.open {
			if s.head.Time < earliest || next == nil {
				next, earliest = s, s.head.Time
			}
		}
	}
	for len(m.waiting) > 0 && (next == nil || m.waiting[0].first < earliest) {
		s := m.waiting[0]
		m.waiting = m.waiting[1:]
		if s.file == nil {
			if err := s.start(); err != nil {
				m.end(s, err)
				continue
			}
		}
		m.open = append(m.open, s)
		if next == nil || s.head.Time < earliest {
			next, earliest = s, s.head.Time
		}
	}
	m.current = next
	if next == nil {
		return nil
	}
	return &next.head
}

// end closes a source, and keeps why unless it was read to its end.
func (m *Merged) end(s *source, err error) {
	problem := Problem{}
	switch {
	case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
	case errors.As(err, &problem):
		m.problems = append(m.problems, problem)
	default:
		m.problems = append(m.problems, Problem{s.path, err})
	}
	s.close()
	m.open = slices.DeleteFunc(m.open, func(o *source) bool { return o == s })
}

// Problems returns the damage that was met so far.
func (m *Merged) Problems() []Problem { return m.problems }

// Close closes all files.
func (m *Merged) Close() {
	for _, s := range slices.Concat(m.open, m.waiting) {
		s.close()
	}
	m.open, m.waiting, m.current = nil, nil, nil
}
