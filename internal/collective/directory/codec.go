package directory

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// MaxMessage is the maximum size of an encoded batch, which is that of a message on the bus.
const MaxMessage = 64 << 10

// MaxRecord is the maximum size of an encoded record.
const MaxRecord = MaxPayload + maxChain*maxCertificate + 128

// MaxAsk is the maximum size of an encoded Ask.
const MaxAsk = 64

// On the bus a batch is a CBOR map (RFC 8949) with small integers as keys. Unknown keys are skipped. Authorities'
// certificates are the same in most records, so a table contains each once.
type (
	batchBody struct {
		Epoch       uint64       `cbor:"1,keyasint"`
		After       uint64       `cbor:"2,keyasint,omitempty"`
		Revision    uint64       `cbor:"3,keyasint,omitempty"`
		Head        uint64       `cbor:"4,keyasint,omitempty"`
		Listing     uint64       `cbor:"5,keyasint,omitempty"`
		Authorities [][]byte     `cbor:"6,keyasint,omitempty"`
		Changes     []changeBody `cbor:"7,keyasint,omitempty"`
	}
	changeBody struct {
		Revision    uint64 `cbor:"1,keyasint"`
		Payload     []byte `cbor:"2,keyasint,omitempty"`
		Signature   []byte `cbor:"3,keyasint,omitempty"`
		Certificate []byte `cbor:"4,keyasint,omitempty"`
		Above       []uint `cbor:"5,keyasint,omitempty"` // indices of Authorities
		Name        string `cbor:"6,keyasint,omitempty"`
		Why         string `cbor:"7,keyasint,omitempty"`
	}
	recordBody struct {
		Payload   []byte   `cbor:"1,keyasint"`
		Signature []byte   `cbor:"2,keyasint"`
		Chain     [][]byte `cbor:"3,keyasint"`
	}
	askBody struct {
		Epoch   uint64 `cbor:"1,keyasint,omitempty"`
		After   uint64 `cbor:"2,keyasint,omitempty"`
		Listing uint64 `cbor:"3,keyasint,omitempty"`
	}
)

// codec holds the CBOR modes of this package.
type codec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

func newCodec() codec {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(err) // constant options
	}
	dec, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:  5,
		MaxArrayElements: 4096,
		MaxMapPairs:      32,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8RejectInvalid,
	}.DecMode()
	if err != nil {
		panic(err) // constant options
	}
	return codec{enc, dec}
}

var cborCodec = newCodec()

// Encode returns the batch for sending, in at most MaxMessage bytes.
func (b *Batch) Encode() ([]byte, error) {
	if err := b.check(); err != nil {
		return nil, fmt.Errorf("encode a batch: %w", err)
	}
	body := batchBody{Epoch: b.Epoch, After: b.After, Revision: b.Revision, Head: b.Head, Listing: b.Listing}
	table := authorities{}
	for _, c := range b.Changes {
		body.Changes = append(body.Changes, table.encode(c))
	}
	body.Authorities = table.all
	out, err := cborCodec.enc.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode a batch: %w", err)
	}
	if len(out) > MaxMessage {
		return nil, fmt.Errorf("encode a batch: %d bytes, at most %d", len(out), MaxMessage)
	}
	return out, nil
}

// authorities is the table of authorities' certificates while it is built.
type authorities struct {
	all   [][]byte
	index map[string]uint
}

func (t *authorities) encode(c Change) changeBody {
	body := changeBody{Revision: c.Revision, Name: c.Name, Why: c.Why}
	if c.Signed == nil {
		return body
	}
	body.Payload, body.Signature, body.Certificate = c.Signed.Payload, c.Signed.Signature, c.Signed.Chain[0]
	for _, der := range c.Signed.Chain[1:] {
		body.Above = append(body.Above, t.add(der))
	}
	return body
}

func (t *authorities) add(der []byte) uint {
	i, ok := t.index[string(der)]
	if !ok {
		if t.index == nil {
			t.index = map[string]uint{}
		}
		i = uint(len(t.all))
		t.index[string(der)] = i
		t.all = append(t.all, der)
	}
	return i
}

// sizer computes an upper bound of a batch's encoded size while it grows.
type sizer struct {
	size  int
	table authorities
}

// add returns the size with one more change.
func (s *sizer) add(c Change) int {
	const head, perItem = 64, 24
	if s.size == 0 {
		s.size = head
	}
	s.size += perItem + len(c.Name) + len(c.Why)
	if c.Signed != nil {
		s.size += len(c.Signed.Payload) + len(c.Signed.Signature) + len(c.Signed.Chain[0])
		for _, der := range c.Signed.Chain[1:] {
			if n := len(s.table.all); s.table.add(der) == uint(n) {
				s.size += len(der)
			}
			s.size += perItem
		}
	}
	return s.size
}

// DecodeBatch decodes a batch. It does not verify the records.
func DecodeBatch(data []byte) (Batch, error) {
	if len(data) > MaxMessage {
		return Batch{}, fmt.Errorf("decode a batch: %d bytes, at most %d", len(data), MaxMessage)
	}
	var body batchBody
	if err := cborCodec.dec.Unmarshal(data, &body); err != nil {
		return Batch{}, fmt.Errorf("decode a batch: %w", err)
	}
	b := Batch{Epoch: body.Epoch, After: body.After, Revision: body.Revision, Head: body.Head, Listing: body.Listing}
	for _, c := range body.Changes {
		change := Change{Revision: c.Revision, Name: c.Name, Why: c.Why}
		if len(c.Payload) > 0 {
			change.Signed = &SignedRecord{Payload: c.Payload, Signature: c.Signature, Chain: [][]byte{c.Certificate}}
			for _, i := range c.Above[:min(len(c.Above), maxChain)] { // longer chains are refused with the record
				if i >= uint(len(body.Authorities)) {
					return Batch{}, fmt.Errorf("decode a batch: change %d is under certificate %d of %d", c.Revision, i, len(body.Authorities))
				}
				change.Signed.Chain = append(change.Signed.Chain, body.Authorities[i])
			}
		}
		b.Changes = append(b.Changes, change)
	}
	if err := b.check(); err != nil {
		return Batch{}, fmt.Errorf("decode a batch: %w", err)
	}
	return b, nil
}

// Encode returns the record for sending to the coordinators, in at most MaxRecord bytes.
func (s *SignedRecord) Encode() ([]byte, error) {
	out, err := cborCodec.enc.Marshal(recordBody(*s))
	if err == nil {
		err = s.checkSize()
	}
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	return out, nil
}

// DecodeRecord decodes a record. It does not verify it.
func DecodeRecord(data []byte) (*SignedRecord, error) {
	if len(data) > MaxRecord {
		return nil, fmt.Errorf("decode a record: %d bytes, at most %d", len(data), MaxRecord)
	}
	var body recordBody
	if err := cborCodec.dec.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("decode a record: %w", err)
	}
	s := SignedRecord(body)
	if err := s.checkSize(); err != nil {
		return nil, fmt.Errorf("decode a record: %w", err)
	}
	return &s, nil
}

// Encode returns the Ask for sending, in at most MaxAsk bytes.
func (a Ask) Encode() ([]byte, error) {
	out, err := cborCodec.enc.Marshal(askBody(a))
	if err != nil {
		return nil, fmt.Errorf("encode an ask: %w", err)
	}
	return out, nil
}

// DecodeAsk decodes an Ask.
func DecodeAsk(data []byte) (Ask, error) {
	if len(data) > MaxAsk {
		return Ask{}, fmt.Errorf("decode an ask: %d bytes, at most %d", len(data), MaxAsk)
	}
	var body askBody
	if err := cborCodec.dec.Unmarshal(data, &body); err != nil {
		return Ask{}, fmt.Errorf("decode an ask: %w", err)
	}
	return Ask(body), nil
}
