package packet

import (
	"encoding/binary"
	"slices"
)

// Kinds of TCP options (IANA, TCP Option Kind Numbers).
const (
	KindEnd           = 0
	KindNOP           = 1
	KindMSS           = 2
	KindWindowScale   = 3
	KindSACKPermitted = 4
	KindSACK          = 5
	KindTimestamps    = 8
	KindMD5           = 19
	KindAO            = 29
	KindMPTCP         = 30
	KindFastOpen      = 34
	KindExperiment1   = 253
	KindExperiment2   = 254
)

// Option is a TCP option of any kind (RFC 9293, 3.2). Methods that read one kind return ok = false for other kinds and
// for a wrong length.
type Option struct {
	Kind uint8
	Data []byte // content after kind and length
}

// appendOptions reads options until End, the end of b, or bytes that are not an option.
func appendOptions(options []Option, b []byte) (all []Option, rest []byte) {
	for len(b) > 0 {
		switch {
		case b[0] == KindEnd:
			return append(options, Option{Kind: KindEnd}), b[1:]
		case b[0] == KindNOP:
			options, b = append(options, Option{Kind: KindNOP}), b[1:]
		case len(b) < 2 || b[1] < 2 || int(b[1]) > len(b):
			return options, b
		default:
			size := int(b[1])
			options, b = append(options, Option{Kind: b[0], Data: b[2:size:size]}), b[size:]
		}
	}
	return options, nil
}

// ParseOptions reads the options area of a TCP header. rest has the bytes after End, or those that are not an option.
func ParseOptions(b []byte) (options []Option, rest []byte) { return appendOptions(nil, b) }

// Append appends the option's bytes.
func (o Option) Append(b []byte) []byte {
	if o.Kind == KindEnd || o.Kind == KindNOP {
		return append(b, o.Kind)
	}
	return append(append(b, o.Kind, uint8(2+len(o.Data))), o.Data...)
}

// Size returns the size of the option in bytes.
func (o Option) Size() int {
	if o.Kind == KindEnd || o.Kind == KindNOP {
		return 1
	}
	return 2 + len(o.Data)
}

func optionsSize(options []Option) (size int) {
	for _, o := range options {
		size += o.Size()
	}
	return size
}

// Options without content.
var (
	End           = Option{Kind: KindEnd}
	NOP           = Option{Kind: KindNOP}
	SACKPermitted = Option{Kind: KindSACKPermitted} // RFC 2018, 2
)

// MSS makes a maximum segment size (RFC 9293, 3.2).
func MSS(size uint16) Option {
	return Option{KindMSS, binary.BigEndian.AppendUint16(nil, size)}
}

// MSS reads a maximum segment size.
func (o Option) MSS() (size uint16, ok bool) {
	if o.Kind != KindMSS || len(o.Data) != 2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(o.Data), true
}

// WindowScale makes a window scale (RFC 7323, 2.2).
func WindowScale(shift uint8) Option { return Option{KindWindowScale, []byte{shift}} }

// WindowScale reads a window scale.
func (o Option) WindowScale() (shift uint8, ok bool) {
	if o.Kind != KindWindowScale || len(o.Data) != 1 {
		return 0, false
	}
	return o.Data[0], true
}

// Block is received data from Left up to but not including Right (RFC 2018, 3).
type Block struct{ Left, Right uint32 }

// SACK makes a selective acknowledgement (RFC 2018, 3).
func SACK(blocks ...Block) Option {
	data := make([]byte, 0, 8*len(blocks))
	for _, s := range blocks {
		data = binary.BigEndian.AppendUint32(data, s.Left)
		data = binary.BigEndian.AppendUint32(data, s.Right)
	}
	return Option{KindSACK, data}
}

// SACK reads a selective acknowledgement.
func (o Option) SACK() (blocks []Block, ok bool) {
	if o.Kind != KindSACK || len(o.Data) == 0 || len(o.Data)%8 != 0 {
		return nil, false
	}
	for b := range slices.Chunk(o.Data, 8) {
		blocks = append(blocks, Block{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])})
	}
	return blocks, true
}

// Timestamps makes timestamps (RFC 7323, 3.2).
func Timestamps(value, echo uint32) Option {
	data := binary.BigEndian.AppendUint32(make([]byte, 0, 8), value)
	return Option{KindTimestamps, binary.BigEndian.AppendUint32(data, echo)}
}

// Timestamps reads timestamps.
func (o Option) Timestamps() (value, echo uint32, ok bool) {
	if o.Kind != KindTimestamps || len(o.Data) != 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(o.Data), binary.BigEndian.Uint32(o.Data[4:]), true
}

// FastOpen makes an option with a Fast Open cookie, or a request for one if cookie is empty (RFC 7413, 4.1.1).
func FastOpen(cookie []byte) Option { return Option{KindFastOpen, cookie} }

// FastOpen reads a Fast Open cookie.
func (o Option) FastOpen() (cookie []byte, ok bool) {
	n := len(o.Data)
	return o.Data, o.Kind == KindFastOpen && (n == 0 || n >= 4 && n <= 16 && n%2 == 0)
}

// MD5 makes a signature (RFC 2385, 3.0).
func MD5(digest [16]byte) Option { return Option{KindMD5, digest[:]} }

// MD5 reads a signature.
func (o Option) MD5() (digest [16]byte, ok bool) {
	if o.Kind != KindMD5 || len(o.Data) != 16 {
		return digest, false
	}
	return [16]byte(o.Data), true
}

// AO makes an authentication option (RFC 5925, 2.2).
func AO(keyID, nextKeyID uint8, mac []byte) Option {
	return Option{KindAO, append([]byte{keyID, nextKeyID}, mac...)}
}

// AO reads an authentication option.
func (o Option) AO() (keyID, nextKeyID uint8, mac []byte, ok bool) {
	if o.Kind != KindAO || len(o.Data) < 2 {
		return 0, 0, nil, false
	}
	return o.Data[0], o.Data[1], o.Data[2:], true
}

// Experiment makes an option of kind 254 with an experiment's id of 16 bits (RFC 6994, 3).
func Experiment(id uint16, data []byte) Option {
	return Option{KindExperiment2, append(binary.BigEndian.AppendUint16(nil, id), data...)}
}

// Experiment reads an option of kind 253 or 254 with an id of 16 bits.
func (o Option) Experiment() (id uint16, data []byte, ok bool) {
	if o.Kind != KindExperiment1 && o.Kind != KindExperiment2 || len(o.Data) < 2 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(o.Data), o.Data[2:], true
}
