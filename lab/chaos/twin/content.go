package twin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// content yields the bytes of one direction of one connection.
type content struct{ source *rand.ChaCha8 }

// newContent returns the bytes of a direction, which has a number.
func newContent(id, direction uint64) content {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], id)
	binary.BigEndian.PutUint64(seed[8:], direction)
	return content{rand.NewChaCha8(seed)}
}

// fill writes the next bytes into all of b.
func (c content) fill(b []byte) { _, _ = c.source.Read(b) } // it never fails

// WrongBytesError reports the first byte that differs from what was sent.
type WrongBytesError struct {
	Offset    int64
	Got, Want byte
}

func (e *WrongBytesError) Error() string {
	return fmt.Sprintf("byte %d is %#02x and was sent as %#02x", e.Offset, e.Got, e.Want)
}

// checker compares received data with the data that was sent.
type checker struct {
	content content
	offset  int64
	want    []byte
}

func newChecker(id, direction uint64) *checker {
	return &checker{content: newContent(id, direction)}
}

// check takes the next bytes that arrived.
func (c *checker) check(got []byte) error {
	if cap(c.want) < len(got) {
		c.want = make([]byte, len(got))
	}
	want := c.want[:len(got)]
	c.content.fill(want)
	if !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				return &WrongBytesError{Offset: c.offset + int64(i), Got: got[i], Want: want[i]}
			}
		}
	}
	c.offset += int64(len(got))
	return nil
}
