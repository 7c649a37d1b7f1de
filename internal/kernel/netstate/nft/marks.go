package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MarkUse is a rule that compares or sets bits of the mark of packets or connections.
type MarkUse struct {
	Rule  string // "rule family table chain handle N"
	Mask  uint32 // the bits that it compares or may change
	Value uint32 // what it compares them with, or the ones among those that it sets
	Sets  bool
}

// MarkUses lists the rules that concern the marks of TCP packets that are forwarded, or of their
// connections. skip chooses tables that are left out. Rules of iptables are found if it is the one
// that works by nftables.
func (c *Conn) MarkUses(skip func(table string) bool) ([]MarkUse, error) {
	chains, err := c.get(unix.NFT_MSG_GETCHAIN, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", mend(err))
	}
	hooks := make(map[string]uint32)
	for _, m := range chains {
		if name, hook, ok := decodeHook(m.Data); ok {
			hooks[name] = hook
		}
	}
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", mend(err))
	}
	var uses []MarkUse
	for _, m := range replies {
		r, err := decodeRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list nftables rules: %w", err)
		}
		if _, known := familyNames[r.family]; !known || skip(r.table) {
			continue
		}
		for _, u := range r.markUses() {
			hook, base := hooks[r.chainName()]
			if base && !concernsForwarded(u, hook) {
				continue
			}
			u.Rule = fmt.Sprintf("rule %s handle %d", r.chainName(), r.handle)
			uses = append(uses, u.MarkUse)
		}
	}
	return uses, nil
}

// concernsForwarded reports whether a chain at the hook sees forwarded packets at a time when it
// matters: the marks of packets decide about their route and are looked at before that.
func concernsForwarded(u markUse, hook uint32) bool {
	switch hook {
	case unix.NF_INET_PRE_ROUTING:
		return true
	case unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING:
		return u.of == connectionMark
	}
	return false
}

// decodeHook reads a base chain's name, as chainName gives it, and its hook.
func decodeHook(message []byte) (name string, hook uint32, ok bool) {
	ad, err := attributesOf(message)
	if err != nil {
		return "", 0, false
	}
	r := rawRule{family: message[0]}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			r.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			r.chain = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(fields *netlink.AttributeDecoder) error {
				fields.ByteOrder = binary.BigEndian
				for fields.Next() {
					if fields.Type() == unix.NFTA_HOOK_HOOKNUM {
						hook, ok = fields.Uint32(), true
					}
				}
				return nil
			})
		}
	}
	return r.chainName(), hook, ok && ad.Err() == nil
}

// rawRule is a rule as the kernel tells it.
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

// number reads an attribute that is a big-endian number.
func (x rawExpression) number(attribute uint16) (n uint32, ok bool) {
	b := x.attributes[attribute]
	if len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// data reads an attribute that holds a value of 32 bits in the host's byte order, as marks are.
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
