package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Port is the default TCP port of a server.
const Port = 45680

// hello is the first message of an exchange, big-endian. The server returns it unchanged to agree.
type hello struct {
	Magic uint32
	Shape uint8
	_     [3]byte
	Seed  uint64
}

const (
	helloMagic = 0x64707231 // "dpr1"
	helloSize  = 16
)

// errNoServer means that something other than this program answers at the server's port.
var errNoServer = errors.New("it is no dcol probe server of this version")

func writeHello(w io.Writer, shape int, seed uint64) error {
	return binary.Write(w, binary.BigEndian, hello{Magic: helloMagic, Shape: uint8(shape), Seed: seed})
}

func readHello(r io.Reader) (Shape, uint64, error) {
	var h hello
	if err := binary.Read(r, binary.BigEndian, &h); err != nil {
		return "", 0, err
	}
	if h.Magic != helloMagic {
		return "", 0, errors.New("it is no client of this program")
	}
	if int(h.Shape) >= len(Shapes()) {
		return "", 0, fmt.Errorf("it asks for shape %d, which this version does not have", h.Shape)
	}
	return Shapes()[h.Shape], h.Seed, nil
}
