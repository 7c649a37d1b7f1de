package nft

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/internal/nlpoll"
)

// Conn is a connection to nftables. It is not safe for concurrent use.
type Conn struct {
	nl      *netlink.Conn
	written tally             // rules written by this connection, or adopted
	intact  map[string]uint32 // by table: the generation in which it was last found intact
	held    held
}

// dumpBuffer is larger than any one answer. The kernel makes the largest answers that fit the buffer.
const dumpBuffer = 64 << 10

// Open connects to nftables of the calling thread's network namespace.
func Open() (*Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &Conn{nl: nl, written: make(tally), intact: make(map[string]uint32), held: make(held)}, nil
}

// Close closes the connection. Tables remain.
func (c *Conn) Close() error { return c.nl.Close() }

// Commit executes what build adds as one transaction: either all of it or nothing. The text doing describes the
// operation in errors.
func (c *Conn) Commit(doing string, build func(*Tx)) error {
	tx := &Tx{messages: []netlink.Message{batchMark(unix.NFNL_MSG_BATCH_BEGIN)}}
	build(tx)
	err := tx.err
	if err == nil {
		err = c.send(append(tx.messages, batchMark(unix.NFNL_MSG_BATCH_END)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, withFix(err))
	}
	c.wrote(tx)
	return nil
}

func batchMark(kind uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   genmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
	}
}

func (c *Conn) send(messages []netlink.Message) error {
	size := 0
	for _, m := range messages {
		size += unix.NLMSG_HDRLEN + len(m.Data)
	}
	// A transaction is one datagram, so it must fit the send buffer.
	if have, err := c.nl.WriteBuffer(); err != nil {
		return err
	} else if have < 2*size {
		if err := c.nl.SetWriteBuffer(2 * size); err != nil {
			return fmt.Errorf("make room for a transaction of %d bytes: %w", size, err)
		}
	}
	_, err := c.nl.SendMessages(messages)
	if errors.Is(err, unix.ENOBUFS) {
		// An answer did not fit the receive buffer. Those that did are read below.
		err = nil
	}
	if err != nil {
		return err
	}
	// The kernel answers during the send call, and only messages that failed. No answer means success. All answers are
	// read here, so that the next transaction does not get them.
	for {
		ready, err2 := nlpoll.Readable(c.nl)
		if err2 != nil || !ready {
			return errors.Join(err, err2)
		}
		if _, err2 := c.nl.Receive(); err == nil {
			err = err2
		}
	}
}

// DeleteTable deletes the table with its content. It is not an error if there is none.
func (c *Conn) DeleteTable(t Table) error {
	return c.Commit("delete nftables table "+t.Name, func(tx *Tx) { tx.DeleteTable(t) })
}

// HasTable reports whether the table exists.
func (c *Conn) HasTable(t Table) (bool, error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_TABLE_NAME, t.Name)
	_, err := c.get(unix.NFT_MSG_GETTABLE, 0, e.b)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for nftables table %s: %w", t.Name, withFix(err))
	}
	return true, nil
}

// SetComment returns the comment of a set. ok is false if there is no such set or table.
func (c *Conn) SetComment(t Table, set string) (comment string, ok bool, err error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_SET_TABLE, t.Name)
	e.string(unix.NFTA_SET_NAME, set)
	replies, err := c.get(unix.NFT_MSG_GETSET, 0, e.b)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("look for nftables set %s: %w", set, withFix(err))
	}
	for _, m := range replies {
		comment = decodeSetComment(m.Data)
	}
	return comment, true, nil
}

// Elements returns a set's elements with their remaining lifetimes, and none if the set or table does not exist. The
// kernel answers in parts. For each part it walks the set again and counts to its position. If the hash table is
// resized or elements expire in between, a listing may repeat some elements and miss others. If an element is repeated,
// Elements lists the set again. An element may be missing even so.
func (c *Conn) Elements(t Table, s Set) ([]Element, error) {
	elements, err := c.listOften(t, s)
	if err != nil {
		return nil, err
	}
	if s.Interval {
		return ranges(elements), nil
	}
	slices.SortFunc(elements, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
	return elements, nil
}

// Element returns the element of a set with a key. ok is false if there is none, or no such set or table.
func (c *Conn) Element(t Table, s Set, key []byte) (found Element, ok bool, err error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	e.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	e.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		e.nested(listElem, func() {
			e.nested(unix.NFTA_SET_ELEM_KEY, func() { e.bytes(unix.NFTA_DATA_VALUE, key) })
		})
	})
	replies, err := c.get(unix.NFT_MSG_GETSETELEM, 0, e.b)
	if errors.Is(err, unix.ENOENT) {
		return Element{}, false, nil
	}
	var elements []Element
	for _, m := range replies {
		if err == nil {
			elements, err = decodeElements(m.Data, elements)
		}
	}
	if err != nil {
		return Element{}, false, fmt.Errorf("look into nftables set %s: %w", s.Name, withFix(err))
	}
	for _, x := range elements {
		if bytes.Equal(x.Key, key) {
			return x, true, nil
		}
	}
	return Element{}, false, nil
}

// listOften lists a set until no element is repeated, in any order.
func (c *Conn) listOften(t Table, s Set) ([]Element, error) {
	const tries = 5
	all := make(map[string]Element)
	for range tries {
		listed, err := c.list(t, s)
		if err != nil {
			return nil, err
		}
		before := len(all)
		for _, e := range listed {
			all[e.held()] = e
		}
		if len(all) == len(listed) || len(all) == before {
			break
		}
	}
	return slices.Collect(maps.Values(all)), nil
}

func (c *Conn) list(t Table, s Set) ([]Element, error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	e.string(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	replies, err := c.get(unix.NFT_MSG_GETSETELEM, netlink.Dump, e.b)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list nftables set %s: %w", s.Name, withFix(err))
	}
	var elements []Element
	for _, m := range replies {
		if elements, err = decodeElements(m.Data, elements); err != nil {
			return nil, fmt.Errorf("list nftables set %s: %w", s.Name, err)
		}
	}
	return elements, nil
}

// QuotaUsed returns the number of bytes, up to its limit, that the quota in a chain's rules has counted. ok is false if
// the chain does not exist or has no quota.
func (c *Conn) QuotaUsed(t Table, chain string) (used uint64, ok bool, err error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_RULE_TABLE, t.Name)
	e.string(unix.NFTA_RULE_CHAIN, chain)
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, e.b)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("read the quota in nftables chain %s: %w", chain, withFix(err))
	}
	for _, m := range replies {
		in, quota, err := decodeQuota(m.Data)
		if err != nil {
			return 0, false, fmt.Errorf("read the quota in nftables chain %s: %w", chain, err)
		}
		if in == chain && quota != nil {
			used, ok = *quota, true
		}
	}
	return used, ok, nil
}

// HasOptionLoad reports whether a rule of a chain loads size bytes of the TCP option of a kind.
func (c *Conn) HasOptionLoad(t Table, chain string, kind byte, size uint32) (bool, error) {
	e := &encoder{b: genmsg(unix.NFPROTO_INET, 0)}
	e.string(unix.NFTA_RULE_TABLE, t.Name)
	e.string(unix.NFTA_RULE_CHAIN, chain)
	replies, err := c.get(unix.NFT_MSG_GETRULE, netlink.Dump, e.b)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the rules of nftables chain %s: %w", chain, withFix(err))
	}
	for _, m := range replies {
		r, err := decodeRule(m.Data)
		if err != nil {
			return false, fmt.Errorf("read the rules of nftables chain %s: %w", chain, err)
		}
		if r.chain == chain && r.loadsOption(kind, size) {
			return true, nil
		}
	}
	return false, nil
}

// ForwardDrops returns the names, as "family table chain", of the base chains at the forward hook with the policy drop.
// They show whether the host's firewall drops forwarded packets, including ours. Rules of the legacy iptables are not
// visible here.
func (c *Conn) ForwardDrops() ([]string, error) {
	replies, err := c.get(unix.NFT_MSG_GETCHAIN, netlink.Dump, genmsg(unix.AF_UNSPEC, 0))
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", withFix(err))
	}
	var drops []string
	for _, m := range replies {
		if name, ok := decodeForwardDrop(m.Data); ok {
			drops = append(drops, name)
		}
	}
	return drops, nil
}

func (c *Conn) get(msg uint16, flags netlink.HeaderFlags, data []byte) ([]netlink.Message, error) {
	return c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(msg), Flags: netlink.Request | flags},
		Data:   data,
	})
}

// withFix adds to a refusal of the kernel what the user can do about it.
func withFix(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (run as root or with CAP_NET_ADMIN)", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (the kernel lacks a part of nftables; it needs CONFIG_NF_TABLES_INET, NFT_NAT, NFT_MASQ, NFT_FIB_INET, NFT_CONNLIMIT, NFT_LIMIT, NFT_QUOTA, NFT_REJECT_INET)", err)
	}
	return err
}
