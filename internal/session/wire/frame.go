package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxFrame is the largest number of bytes after a frame's length. It leaves room for larger future
// messages, for example with keys or records.
const MaxFrame = 4096

// ErrFraming means that the stream is not a sequence of frames. Nothing after it can be decoded.
var ErrFraming = errors.New("broken frame")

// MalformedError means that one message could not be decoded. Reading can continue with the next.
type MalformedError struct {
	Type Type
	ID   uint64 // 0 if unreadable or absent
	Err  error
}

func (e *MalformedError) Error() string { return fmt.Sprintf("malformed %v: %v", e.Type, e.Err) }
func (e *MalformedError) Unwrap() error { return e.Err }

// Append appends the frame of a message to dst. On an error it returns dst unchanged.
func Append(dst []byte, m Message) ([]byte, error) {
	t, b := m.body()
	encoded, err := encode(b)
	if err != nil {
		return dst, fmt.Errorf("encode %v: %w", t, err)
	}
	n := len(encoded) + 1
	if n > MaxFrame {
		return dst, fmt.Errorf("encode %v: %d bytes, the most is %d", t, n, MaxFrame)
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	dst = append(dst, byte(t))
	return append(dst, encoded...), nil
}

// Decoder reads messages from a stream.
type Decoder struct {
	r   *bufio.Reader
	buf [MaxFrame]byte
}

// NewDecoder returns a Decoder for r. It may read ahead of the returned messages.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{r: bufio.NewReaderSize(r, 2+MaxFrame)}
}

// Next returns the next message. After a *MalformedError it may be called again; any other error is
// final: ErrFraming, or the reader's (io.EOF only between frames).
func (d *Decoder) Next() (Message, error) {
	var head [2]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: the stream ends within a length", ErrFraming)
		}
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n == 0 || n > MaxFrame {
		return nil, fmt.Errorf("%w: a length of %d, allowed are 1 to %d", ErrFraming, n, MaxFrame)
	}
	frame := d.buf[:n]
	if _, err := io.ReadFull(d.r, frame); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: the stream ends within a message", ErrFraming)
		}
		return nil, err
	}
	t, body := Type(frame[0]), frame[1:]
	m, err := decode(t, body)
	if err != nil {
		return nil, &MalformedError{Type: t, ID: idOf(t, body), Err: err}
	}
	return m, nil
}
