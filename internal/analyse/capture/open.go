package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Reader reads one capture.
type Reader struct {
	format interface{ next(*Packet) error }
	close  func()
}

// maxWindow bounds the memory that a zstd file can ask for: `zstd --long=27` is the largest that zstd itself
// decodes without being told to.
const maxWindow = 128 << 20

// NewReader recognises format and compression by the first bytes. It returns io.EOF for an empty stream.
func NewReader(from io.Reader) (*Reader, error) {
	in := &blocks{from: from}
	closes := func() {}
	head, err := in.peek(4)
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, err
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(unread(in))
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, cutHead()
		case err != nil:
			return nil, fmt.Errorf("decompress gzip: %w", err)
		}
		ahead := readAhead(z)
		in, closes = &blocks{from: ahead}, ahead.close
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(unread(in), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("decompress zstd: %w", err)
		}
		in, closes = &blocks{from: z}, z.Close
	}
	r, err := newReader(in)
	if err != nil {
		closes()
		return nil, err
	}
	r.close = closes
	return r, nil
}

func newReader(in *blocks) (*Reader, error) {
	if ng := newPcapng(in); ng != nil {
		return &Reader{format: ng}, nil
	}
	pcap, err := newPcap(in)
	if err != nil {
		return nil, err
	}
	if pcap != nil {
		return &Reader{format: pcap}, nil
	}
	head, err := in.peek(4)
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, cutHead()
	case err != nil:
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return nil, fmt.Errorf("it begins with % x and is neither pcap nor pcapng; gzip and zstd are decompressed, others are not", head)
}

// cutHead is the error of a stream that ends before a whole header of a capture was read.
func cutHead() error { return fmt.Errorf("it ends within the file header: %w", io.ErrUnexpectedEOF) }

// Next reads the next packet, whose data is valid until the next call. It returns io.EOF at the end.
func (r *Reader) Next(p *Packet) error {
	err := r.format.next(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return cut(err)
	}
	return err
}

// Close ends decompression.
func (r *Reader) Close() { r.close() }

// unread returns the whole stream, with the bytes that were read in advance.
func unread(in *blocks) io.Reader {
	return io.MultiReader(bytes.NewReader(in.buffer[in.start:in.end]), afterEOF{in})
}

// afterEOF returns the rest of a stream that may have ended already.
type afterEOF struct{ in *blocks }

func (a afterEOF) Read(p []byte) (int, error) {
	if a.in.err != nil {
		return 0, a.in.err
	}
	return a.in.from.Read(p)
}

// ahead decompresses in a goroutine of its own, two blocks in advance.
type ahead struct {
	full  chan filled
	empty chan []byte
	done  chan struct{}
	now   filled
	at    int
}

type filled struct {
	buffer []byte
	n      int
	err    error
}

func readAhead(from io.Reader) *ahead {
	a := &ahead{full: make(chan filled, 2), empty: make(chan []byte, 3), done: make(chan struct{})}
	for range cap(a.empty) {
		a.empty <- make([]byte, blockSize/4)
	}
	go func() {
		defer close(a.full)
		for {
			select {
			case <-a.done:
				return
			case buffer := <-a.empty:
				// Not io.ReadFull, which hides whether the stream has ended or was cut.
				var n int
				var err error
				for n < len(buffer) && err == nil {
					var got int
					got, err = from.Read(buffer[n:])
					n += got
				}
				select {
				case a.full <- filled{buffer, n, err}:
				case <-a.done:
					return
				}
				if err != nil {
					return
				}
			}
		}
	}()
	return a
}

func (a *ahead) Read(p []byte) (int, error) {
	for a.at == a.now.n {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.buffer != nil {
			a.empty <- a.now.buffer
		}
		a.now, a.at = <-a.full, 0
	}
	n := copy(p, a.now.buffer[a.at:a.now.n])
	a.at += n
	return n, nil
}

func (a *ahead) close() {
	close(a.done)
	for range a.full { // until the goroutine has ended
	}
}
