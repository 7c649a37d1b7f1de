package wire

import (
	"errors"

	"github.com/fxamacker/cbor/v2"
)

var encMode, decMode = modes()

func modes() (cbor.EncMode, cbor.DecMode) {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(err) // constant options
	}
	dec, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:  4,
		MaxArrayElements: maxArray,
		MaxMapPairs:      32,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8RejectInvalid,
	}.DecMode()
	if err != nil {
		panic(err) // constant options
	}
	return enc, dec
}

// encode returns the encoded body of a message.
func encode(b body) ([]byte, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return encMode.Marshal(b)
}

func decode(t Type, data []byte) (Message, error) {
	known, ok := types[t]
	if !ok {
		return nil, errors.New("unknown message type")
	}
	b := known.body()
	if err := decMode.Unmarshal(data, b); err != nil {
		return nil, err
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.message(), nil
}

// idOf returns the id of a message that cannot be decoded otherwise, or 0 if there is none.
func idOf(t Type, data []byte) uint64 {
	if t == TypeHello { // its key 1 is the version
		return 0
	}
	var b idBody
	if err := decMode.Unmarshal(data, &b); err != nil {
		return 0
	}
	return b.ID
}
