package nft

import (
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Tx collects the messages of one transaction.
type Tx struct {
	messages []netlink.Message
	counts   []count
	changes  []change
	setIDs   uint32
	err      error
}

// AddTable adds a table, unless it exists already.
func (tx *Tx) AddTable(t Table) {
	flags := uint32(0)
	if t.Owned {
		flags = tableOwner
	}
	tx.message(unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *encoder) {
		e.string(unix.NFTA_TABLE_NAME, t.Name)
		e.u32(unix.NFTA_TABLE_FLAGS, flags)
	})
}

const tableOwner = 0x2 // NFT_TABLE_F_OWNER

// DeleteTable deletes a table with its content, if it exists.
func (tx *Tx) DeleteTable(t Table) {
	// Deleting requires an existing table. NFT_MSG_DESTROYTABLE does not, but exists only since Linux 6.3.
	tx.AddTable(t)
	tx.message(unix.NFT_MSG_DELTABLE, 0, func(e *encoder) { e.string(unix.NFTA_TABLE_NAME, t.Name) })
	tx.counts = append(tx.counts, count{table: t.Name})
	tx.changes = append(tx.changes, change{table: t.Name})
}

// Kinds of user data of sets, elements and chains, from libnftnl.
const (
	userSetKeyByteOrder  = 0
	userSetDataByteOrder = 1
	userSetKeyTypeOf     = 3
	userSetComment       = 7
	userElementComment   = 0
	userChainComment     = 0

	byteOrderHost = 1
	byteOrderBig  = 2
)

// AddSet adds a set or map.
func (tx *Tx) AddSet(t Table, s Set) {
	tx.setIDs++
	tx.message(unix.NFT_MSG_NEWSET, netlink.Create, func(e *encoder) {
		e.string(unix.NFTA_SET_TABLE, t.Name)
		e.string(unix.NFTA_SET_NAME, s.Name)
		e.u32(unix.NFTA_SET_ID, tx.setIDs)
		e.u32(unix.NFTA_SET_FLAGS, s.flags())
		keyType, keySize := concat(s.Key)
		e.u32(unix.NFTA_SET_KEY_TYPE, keyType)
		e.u32(unix.NFTA_SET_KEY_LEN, keySize)
		var user []byte
		switch {
		case s.Key[0].hostLong:
			user = appendUserU32(user, userSetKeyByteOrder, byteOrderHost)
		case s.typeOf():
			if len(s.Key) == 1 {
				user = appendUserU32(user, userSetKeyByteOrder, byteOrderBig)
			}
			user = appendUser(user, userSetKeyTypeOf, typeOfUser(s.Key))
		}
		if len(s.Data) > 0 {
			dataType, dataSize := concat(s.Data)
			e.u32(unix.NFTA_SET_DATA_TYPE, dataType)
			if dataSize > 0 {
				e.u32(unix.NFTA_SET_DATA_LEN, dataSize)
			}
			if s.Data[0].hostLong {
				user = appendUserU32(user, userSetDataByteOrder, byteOrderHost)
			}
		}
		if s.Comment != "" {
			user = appendUserString(user, userSetComment, s.Comment)
		}
		if s.Size > 0 || len(s.Key) > 1 {
			e.nested(unix.NFTA_SET_DESC, func() { s.describe(e) })
		}
		if len(user) > 0 {
			e.bytes(unix.NFTA_SET_USERDATA, user)
		}
	})
}

const (
	setConcat     = 0x80 // NFT_SET_CONCAT
	setDescConcat = 2    // NFTA_SET_DESC_CONCAT
	listElem      = 1    // NFTA_LIST_ELEM
	chainUserData = 12   // NFTA_CHAIN_USERDATA
	fieldLen      = 1    // NFTA_SET_FIELD_LEN
)

func (s Set) flags() (flags uint32) {
	if len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Timeout {
		flags |= unix.NFT_SET_TIMEOUT
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.Key) > 1 {
		flags |= setConcat
	}
	return flags
}

func (s Set) describe(e *encoder) {
	if s.Size > 0 {
		e.u32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if len(s.Key) > 1 {
		e.nested(setDescConcat, func() {
			for _, t := range s.Key {
				e.nested(listElem, func() { e.u32(fieldLen, t.size) })
			}
		})
	}
}

// concat returns nft's number and size of a concatenation: six bits for each type, whole registers for each part.
func concat(types []Type) (id, size uint32) {
	for _, t := range types {
		id = id<<6 | t.id
		size += (t.size + 3) &^ 3
	}
	if len(types) == 1 {
		size = types[0].size
	}
	return id, size
}

// AddChains adds chains and then their rules, so that rules may refer to any of the chains.
func (tx *Tx) AddChains(t Table, chains []Chain) {
	for _, c := range chains {
		tx.message(unix.NFT_MSG_NEWCHAIN, netlink.Create, func(e *encoder) {
			e.string(unix.NFTA_CHAIN_TABLE, t.Name)
			e.string(unix.NFTA_CHAIN_NAME, c.Name)
			if c.Hook != nil {
				e.nested(unix.NFTA_CHAIN_HOOK, func() {
					e.u32(unix.NFTA_HOOK_HOOKNUM, c.Hook.Number)
					e.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
				})
				e.string(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
			}
			if c.Comment != "" {
				e.bytes(chainUserData, appendUserString(nil, userChainComment, c.Comment))
			}
		})
	}
	for _, c := range chains {
		tx.addRules(t, c)
	}
}

func (tx *Tx) addRules(t Table, c Chain) {
	tx.counts = append(tx.counts, count{table: t.Name, chain: c.Name, rules: len(c.Rules)})
	for _, r := range c.Rules {
		tx.message(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(e *encoder) {
			e.string(unix.NFTA_RULE_TABLE, t.Name)
			e.string(unix.NFTA_RULE_CHAIN, c.Name)
			e.nested(unix.NFTA_RULE_EXPRESSIONS, func() { tx.expressions(e, r) })
		})
	}
}

// ReplaceRules replaces the rules of a chain. The counters of the old rules are lost.
func (tx *Tx) ReplaceRules(t Table, c Chain) {
	tx.message(unix.NFT_MSG_DELRULE, 0, func(e *encoder) { // all rules of the chain, because none is named
		e.string(unix.NFTA_RULE_TABLE, t.Name)
		e.string(unix.NFTA_RULE_CHAIN, c.Name)
	})
	tx.counts = append(tx.counts, count{table: t.Name, chain: c.Name, clear: true})
	tx.addRules(t, c)
}

func (tx *Tx) expressions(e *encoder, rule []expr.Any) {
	for _, x := range rule {
		b, err := marshal(x)
		if err != nil && tx.err == nil {
			tx.err = err
		}
		e.bytes(listElem|unix.NLA_F_NESTED, b)
	}
}

// AddElements adds elements. An existing element with the same data stays unchanged. One with other data makes the
// transaction fail.
func (tx *Tx) AddElements(t Table, s Set, elements []Element) {
	tx.elements(unix.NFT_MSG_NEWSETELEM, netlink.Create, t, s, elements, addition)
}

// CreateElements adds elements. Any existing one makes the transaction fail.
func (tx *Tx) CreateElements(t Table, s Set, elements []Element) {
	tx.elements(unix.NFT_MSG_NEWSETELEM, netlink.Create|netlink.Excl, t, s, elements, addition)
}

func addition(e *encoder, x Element) {
	if len(x.Data) > 0 {
		e.nested(unix.NFTA_SET_ELEM_DATA, func() { e.bytes(unix.NFTA_DATA_VALUE, x.Data) })
	}
	if x.Jump != "" {
		e.nested(unix.NFTA_SET_ELEM_DATA, func() { e.nested(unix.NFTA_DATA_VERDICT, func() { jump(e, x.Jump) }) })
	}
	if x.Timeout > 0 {
		e.u64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(max(x.Timeout/time.Millisecond, 1)))
	}
	if x.Comment != "" {
		e.bytes(unix.NFTA_SET_ELEM_USERDATA, appendUserString(nil, userElementComment, x.Comment))
	}
}

func jump(e *encoder, chain string) {
	code := int32(unix.NFT_JUMP)
	e.u32(unix.NFTA_VERDICT_CODE, uint32(code))
	e.string(unix.NFTA_VERDICT_CHAIN, chain)
}

// DeleteElements deletes elements by their keys. A missing one makes the transaction fail.
func (tx *Tx) DeleteElements(t Table, s Set, elements []Element) {
	tx.elements(unix.NFT_MSG_DELSETELEM, 0, t, s, elements, func(*encoder, Element) {})
}

// FlushSet deletes all elements.
func (tx *Tx) FlushSet(t Table, s Set) {
	tx.message(unix.NFT_MSG_DELSETELEM, 0, func(e *encoder) {
		e.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		e.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	})
	tx.changes = append(tx.changes, change{table: t.Name, set: s, clear: true})
}

// maxElements keeps the elements of one message below 64 KiB, the maximum size of an attribute.
const maxElements = 60 << 10

func (tx *Tx) elements(msg uint16, flags netlink.HeaderFlags, t Table, s Set, elements []Element, rest func(*encoder, Element)) {
	if s.Interval {
		elements = bounds(elements)
	}
	tx.changes = append(tx.changes, change{table: t.Name, set: s, remove: msg == unix.NFT_MSG_DELSETELEM, elements: elements})
	for len(elements) > 0 {
		tx.message(msg, flags, func(e *encoder) {
			e.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
			e.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			e.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for len(elements) > 0 && len(e.b) < maxElements {
					x := elements[0]
					elements = elements[1:]
					e.nested(listElem, func() {
						e.nested(unix.NFTA_SET_ELEM_KEY, func() { e.bytes(unix.NFTA_DATA_VALUE, x.Key) })
						if x.bound {
							e.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
						} else {
							rest(e, x)
						}
					})
				}
			})
		})
	}
}

func (tx *Tx) message(msg uint16, flags netlink.HeaderFlags, attributes func(*encoder)) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	attributes(e)
	tx.messages = append(tx.messages, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(msg), Flags: netlink.Request | flags},
		Data:   e.b,
	})
}

// genmsg is a struct nfgenmsg; the resource is big-endian and fits a byte here.
func genmsg(family, resource byte) []byte {
	return []byte{family, unix.NFNETLINK_V0, 0, resource}
}
