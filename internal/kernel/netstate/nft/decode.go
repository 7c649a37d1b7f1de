package nft

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const genmsgSize = 4 // struct nfgenmsg

var errShort = errors.New("a message without its header")

func attributesOf(message []byte) (*netlink.AttributeDecoder, error) {
	if len(message) < genmsgSize {
		return nil, errShort
	}
	return bigEndian(message[genmsgSize:])
}

func bigEndian(b []byte) (*netlink.AttributeDecoder, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return ad, err
}

func decodeSetComment(message []byte) string {
	ad, err := attributesOf(message)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_SET_USERDATA {
			return userString(ad.Bytes(), userSetComment)
		}
	}
	return ""
}

// decodeElements appends the elements of one message of a dump.
func decodeElements(message []byte, elements []Element) ([]Element, error) {
	ad, err := attributesOf(message)
	if err != nil {
		return nil, err
	}
	for ad.Next() {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		ad.Nested(func(list *netlink.AttributeDecoder) error {
			list.ByteOrder = binary.BigEndian
			for list.Next() {
				list.Nested(func(fields *netlink.AttributeDecoder) error {
					e, err := decodeElement(fields)
					elements = append(elements, e)
					return err
				})
			}
			return nil
		})
	}
	return elements, ad.Err()
}

func decodeElement(ad *netlink.AttributeDecoder) (e Element, err error) {
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(value(&e.Key))
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(data(&e))
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = milliseconds(ad.Uint64())
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = milliseconds(ad.Uint64())
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = userString(ad.Bytes(), userElementComment)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.bound = ad.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
	return e, ad.Err()
}

// data decodes a value, or the chain that a verdict jumps to.
func data(to *Element) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_DATA_VALUE:
				to.Data = ad.Bytes()
			case unix.NFTA_DATA_VERDICT:
				ad.Nested(func(verdict *netlink.AttributeDecoder) error {
					for verdict.Next() {
						if verdict.Type() == unix.NFTA_VERDICT_CHAIN {
							to.Jump = verdict.String()
						}
					}
					return nil
				})
			}
		}
		return nil
	}
}

func value(to *[]byte) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == unix.NFTA_DATA_VALUE {
				*to = ad.Bytes()
			}
		}
		return nil
	}
}

// decodeQuota decodes the chain of a rule, and the number of bytes that its quota has counted. used is nil if the rule
// has no quota.
func decodeQuota(message []byte) (chain string, used *uint64, err error) {
	ad, err := attributesOf(message)
	if err != nil {
		return "", nil, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			chain = ad.String()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(x *netlink.AttributeDecoder) error { return decodeQuotaExpr(x, &used) })
				}
				return nil
			})
		}
	}
	return chain, used, ad.Err()
}

func decodeQuotaExpr(ad *netlink.AttributeDecoder, used **uint64) error {
	var name string
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			if name != "quota" { // the name comes first
				continue
			}
			ad.Nested(func(quota *netlink.AttributeDecoder) error {
				quota.ByteOrder = binary.BigEndian
				for quota.Next() {
					if quota.Type() == unix.NFTA_QUOTA_CONSUMED {
						n := quota.Uint64()
						*used = &n
					}
				}
				return nil
			})
		}
	}
	return nil
}

func milliseconds(n uint64) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(n, most)) * time.Millisecond
}

// Hook numbers have the same meaning in these families, but not in arp, netdev and bridge.
var familyNames = map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

// decodeForwardDrop returns the name of a chain. ok is false unless it is a base chain at the forward hook with the
// policy drop.
func decodeForwardDrop(message []byte) (name string, ok bool) {
	ad, err := attributesOf(message)
	if err != nil {
		return "", false
	}
	var table, chain string
	var forward, drops bool
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			chain = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			drops = ad.Uint32() == policyDrop
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(hook *netlink.AttributeDecoder) error {
				hook.ByteOrder = binary.BigEndian
				for hook.Next() {
					if hook.Type() == unix.NFTA_HOOK_HOOKNUM {
						forward = hook.Uint32() == unix.NF_INET_FORWARD
					}
				}
				return nil
			})
		}
	}
	family, known := familyNames[message[0]]
	return family + " " + table + " " + chain, ad.Err() == nil && known && forward && drops
}

const policyDrop = 0 // NF_DROP
