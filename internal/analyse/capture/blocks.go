package capture

import (
	"errors"
	"io"
)

const (
	blockSize = 1 << 20
	// maxRecord bounds a packet or a block of pcapng. tcpdump's largest snap length is 262144; a larger number
	// comes from a damaged file.
	maxRecord = 16 << 20
)

// blocks reads a stream in large blocks.
type blocks struct {
	from       io.Reader
	buffer     []byte
	start, end int
	passed     int64 // bytes before start
	err        error
}

// take returns the next n bytes, valid until the next call. It fails with io.EOF at the end of the stream and
// with io.ErrUnexpectedEOF if the stream ends within the n bytes.
func (b *blocks) take(n int) ([]byte, error) {
	if b.end-b.start < n {
		if err := b.fill(n); err != nil {
			return nil, err
		}
	}
	taken := b.buffer[b.start : b.start+n : b.start+n]
	b.start += n
	return taken, nil
}

// peek returns the next n bytes and leaves them in the stream.
func (b *blocks) peek(n int) ([]byte, error) {
	p, err := b.take(n)
	if err == nil {
		b.start -= n
	}
	return p, err
}

func (b *blocks) fill(n int) error {
	if b.buffer == nil || n > len(b.buffer) {
		larger := make([]byte, max(n, blockSize))
		b.end = copy(larger, b.buffer[b.start:b.end])
		b.passed += int64(b.start)
		b.start, b.buffer = 0, larger
	} else if b.start > 0 {
		b.passed += int64(b.start)
		b.end = copy(b.buffer, b.buffer[b.start:b.end])
		b.start = 0
	}
	for b.end < n && b.err == nil {
		var got int
		got, b.err = b.from.Read(b.buffer[b.end:])
		b.end += got
	}
	switch {
	case b.end >= n:
		return nil
	case errors.Is(b.err, io.EOF) && b.end == 0:
		return io.EOF
	case errors.Is(b.err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return b.err
}

// offset returns the number of bytes that were taken.
func (b *blocks) offset() int64 { return b.passed + int64(b.start) }
