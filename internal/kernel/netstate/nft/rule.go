package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rawRule is a rule in the form in which the kernel lists it.
type rawRule struct {
	family       byte
	table, chain string
	handle       uint64
	expressions  []rawExpression
}

func (r rawRule) chainName() string { return familyNames[r.family] + " " + r.table + " " + r.chain }

// rawExpression has an expression's attributes by their types.
type rawExpression struct {
	name       string
	attributes map[uint16][]byte
}

// loadsOption reports whether an expression loads size bytes of the TCP option of a kind.
func (r rawRule) loadsOption(kind byte, size uint32) bool {
	return slices.ContainsFunc(r.expressions, func(x rawExpression) bool {
		length, _ := x.number(unix.NFTA_EXTHDR_LEN)
		operation, _ := x.number(unix.NFTA_EXTHDR_OP)
		return x.name == "exthdr" && operation == exthdrOpTCPOption && length == size &&
			bytes.Equal(x.attributes[unix.NFTA_EXTHDR_TYPE], []byte{kind})
	})
}

func decodeRule(message []byte) (r rawRule, err error) {
	ad, err := attributesOf(message)
	if err != nil {
		return r, err
	}
	r.family = message[0]
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			r.table = ad.String()
		case unix.NFTA_RULE_CHAIN:
			r.chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = ad.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(fields *netlink.AttributeDecoder) error {
						x, err := decodeExpression(fields)
						r.expressions = append(r.expressions, x)
						return err
					})
				}
				return nil
			})
		}
	}
	return r, ad.Err()
}

// decodePlace decodes the names of a rule's table and chain.
func decodePlace(message []byte) (table, chain string, err error) {
	ad, err := attributesOf(message)
	if err != nil {
		return "", "", err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			table = ad.String()
		case unix.NFTA_RULE_CHAIN:
			chain = ad.String()
		}
	}
	return table, chain, ad.Err()
}

func decodeExpression(ad *netlink.AttributeDecoder) (x rawExpression, err error) {
	x.attributes = make(map[uint16][]byte)
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			x.name = ad.String()
		case unix.NFTA_EXPR_DATA:
			ad.Nested(func(fields *netlink.AttributeDecoder) error {
				for fields.Next() {
					x.attributes[fields.Type()] = fields.Bytes()
				}
				return nil
			})
		}
	}
	return x, ad.Err()
}

var errNoNumber = errors.New("an attribute is no number of 32 bits")

// number reads an attribute with a big-endian number.
func (x rawExpression) number(attribute uint16) (n uint32, ok bool) {
	b := x.attributes[attribute]
	if len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// data reads an attribute with a value of 32 bits in the host's byte order, such as a mark.
func (x rawExpression) data(attribute uint16) (n uint32, err error) {
	ad, err := netlink.NewAttributeDecoder(x.attributes[attribute])
	if err != nil {
		return 0, err
	}
	var b []byte
	if err := value(&b)(ad); err != nil {
		return 0, err
	}
	if len(b) != 4 {
		return 0, errNoNumber
	}
	return binary.NativeEndian.Uint32(b), ad.Err()
}
