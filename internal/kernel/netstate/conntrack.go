package netstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/internal/nlpoll"
)

// ErrEventsLost means that the kernel dropped conntrack events because they were not read in time.
// A dump finds what was missed. Later events still arrive.
var ErrEventsLost = errors.New("conntrack events were lost")

// MarkMatch selects conntrack entries whose mark, masked, equals a value.
type MarkMatch struct{ Value, Mask uint32 }

// Conntrack lists and changes conntrack entries. Not safe for concurrent use.
type Conntrack struct{ conn *netlink.Conn }

// OpenConntrack opens a handle on the calling thread's network namespace.
func OpenConntrack() (*Conntrack, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open conntrack: %w", err)
	}
	return &Conntrack{conn: conn}, nil
}

// Close releases the handle.
func (c *Conntrack) Close() error { return c.conn.Close() }

// Flows calls each for every matching TCP entry, IPv4 and IPv6.
func (c *Conntrack) Flows(match MarkMatch, each func(Flow)) error {
	_, err := c.conn.Send(ctnetlinkRequest(ctMsgGet, netlink.Request|netlink.Dump, match))
	if err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	for m, err := range c.conn.ReceiveIter() {
		if err != nil {
			return fmt.Errorf("list conntrack entries: %w", err)
		}
		if f, ok := decodeFlow(m.Data); ok && f.Mark&match.Mask == match.Value {
			each(f)
		}
	}
	return nil
}

// Delete removes every matching entry, so that its connection is no longer translated.
func (c *Conntrack) Delete(match MarkMatch) error {
	if match.Mask == 0 {
		return errors.New("delete conntrack entries: an empty mask would delete those of everybody")
	}
	_, err := c.conn.Execute(ctnetlinkRequest(ctMsgDelete, netlink.Request|netlink.Acknowledge, match))
	if err != nil {
		return fmt.Errorf("delete conntrack entries of mark %#x/%#x: %w", match.Value, match.Mask, err)
	}
	return nil
}

// DeleteEach removes the matching TCP entries for which which returns true, and returns their number.
func (c *Conntrack) DeleteEach(match MarkMatch, which func(Flow) bool) (int, error) {
	var found []Flow
	err := c.Flows(match, func(f Flow) {
		if which(f) {
			found = append(found, f)
		}
	})
	if err != nil {
		return 0, err
	}
	for _, f := range found {
		_, err := c.conn.Execute(deleteRequest(f.Origin))
		if err != nil && !errors.Is(err, unix.ENOENT) { // it ended by itself meanwhile
			return 0, fmt.Errorf("delete the conntrack entry of %v to %v: %w", f.Origin.Src, f.Origin.Dst, err)
		}
	}
	return len(found), nil
}

// deleteFlowsFrom removes the TCP entries whose first packet came from src. It does nothing on hosts
// whose kernel tracks no connections or cannot list them.
func deleteFlowsFrom(src netip.Prefix) error {
	return withConntrack(func(c *Conntrack) error {
		_, err := c.DeleteEach(MarkMatch{}, func(f Flow) bool { return src.Contains(f.Origin.Src.Addr()) })
		return err
	})
}

// flowsLast is the time for which conntrack keeps an idle connection from an address that is gone. It is longer than an
// agent's restart.
const flowsLast = 10 * time.Minute

// limitFlowsFrom makes conntrack forget connections from an address after flowsLast without a packet. They cannot end
// properly while the address is gone, and conntrack would keep them for days. They are not deleted at once, because the
// address may come back: then the first packet may be the peer's, and conntrack must still know that this host opened
// the connection.
func limitFlowsFrom(src netip.Prefix) error {
	return withConntrack(func(c *Conntrack) error {
		var flows []Tuple
		err := c.Flows(MarkMatch{}, func(f Flow) {
			if src.Contains(f.Origin.Src.Addr()) {
				flows = append(flows, f.Origin)
			}
		})
		for _, origin := range flows {
			if limited := c.Relax(origin, flowsLast); !errors.Is(limited, unix.ENOENT) { // it has not ended in the meantime
				err = errors.Join(err, limited)
			}
		}
		return err
	})
}

// withConntrack calls f unless this namespace tracks no connections.
func withConntrack(f func(*Conntrack) error) error {
	if _, err := Sysctl("net/netfilter/nf_conntrack_count"); err != nil || loadConntrack() != nil {
		return nil
	}
	c, err := OpenConntrack()
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

// FlowEvents is a subscription to conntrack entries: their creation, establishment and end.
type FlowEvents struct{ conn *netlink.Conn }

// eventBuffer holds the events of several seconds at thousands of connections per second.
const eventBuffer = 8 << 20

// SubscribeFlows subscribes to matching entries in the calling thread's network namespace. The
// kernel filters out all others, so that a busy host does not overflow the queue.
func SubscribeFlows(match MarkMatch) (*FlowEvents, error) {
	if err := loadConntrack(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("subscribe to conntrack events: %w", err)
	}
	filter, err := bpf.Assemble(eventFilter(match))
	if err == nil {
		err = errors.Join(
			conn.SetBPF(filter),
			conn.SetReadBuffer(eventBuffer),
			conn.JoinGroup(groupConntrackNew),
			conn.JoinGroup(groupConntrackUpdate),
			conn.JoinGroup(groupConntrackDestroy),
		)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("subscribe to conntrack events: %w", err)
	}
	return &FlowEvents{conn: conn}, nil
}

// loadConntrack makes the kernel load its conntrack modules and waits for them, by requesting
// statistics. Subscribing also loads them, but does not wait: sysctls would be missing and the
// first events lost.
func loadConntrack() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("load conntrack: %w", err)
	}
	defer conn.Close()
	_, err = conn.Execute(ctnetlinkRequest(ctMsgGetStatsCPU, netlink.Request|netlink.Dump, MarkMatch{}))
	if err != nil {
		return fmt.Errorf("load conntrack: %w (the kernel needs CONFIG_NF_CONNTRACK and CONFIG_NF_CT_NETLINK)", err)
	}
	return nil
}

// eventFilter passes events of entries with the mark. It drops events about changes of entries that are not
// established.
func eventFilter(match MarkMatch) []bpf.Instruction {
	const (
		kind       = 4 // low byte of the type; type and flags are in the host's order
		flags      = 6
		attributes = unix.NLMSG_HDRLEN + nfgenmsgSize
	)
	isNew := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.NLM_F_CREATE))
	pass, drop := bpf.RetConstant{Val: 0xffffffff}, bpf.RetConstant{Val: 0}
	// find sets A to the offset of an attribute, searching from where attributes begin or inside a
	// nested one.
	find := func(attribute uint32, by bpf.Extension) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.RegX, Val: attribute},
			bpf.LoadExtension{Num: by},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, // its offset
			drop,
		}
	}
	return slices.Concat(
		[]bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: attributes}},
		find(ctaMark, bpf.ExtNetlinkAttr),
		[]bpf.Instruction{
			bpf.TAX{},
			bpf.LoadIndirect{Off: unix.NLA_HDRLEN, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: match.Mask},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: match.Value, SkipTrue: 1},
			drop,
			bpf.LoadAbsolute{Off: kind, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: ctMsgNew, SkipTrue: 1},
			pass,
			bpf.LoadAbsolute{Off: flags, Size: 2},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: uint32(isNew), SkipTrue: 1},
			pass,
			bpf.LoadConstant{Dst: bpf.RegA, Val: attributes},
		},
		find(ctaProtoInfo, bpf.ExtNetlinkAttr),
		find(ctaProtoInfoTCP, bpf.ExtNetlinkAttrNested),
		find(ctaProtoInfoTCPState, bpf.ExtNetlinkAttrNested),
		[]bpf.Instruction{
			bpf.TAX{},
			bpf.LoadIndirect{Off: unix.NLA_HDRLEN, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: tcpEstablished, SkipTrue: 1},
			drop,
			pass,
		},
	)
}

// Receive waits for events. With ErrEventsLost it also returns the events that were not lost. Any
// other error means that the subscription has ended.
func (e *FlowEvents) Receive() ([]FlowEvent, error) {
	messages, err := e.conn.Receive()
	if isLost(err) {
		return e.drain()
	}
	if err != nil {
		return nil, fmt.Errorf("receive conntrack events: %w", err)
	}
	return appendEvents(nil, messages), nil
}

// drain reads all queued events. The kernel reports a loss once, and silently drops further events
// until the queue has been empty. Only then does a dump find what is missing.
func (e *FlowEvents) drain() ([]FlowEvent, error) {
	var events []FlowEvent
	for {
		ready, err := nlpoll.Readable(e.conn)
		if err == nil && !ready {
			return events, ErrEventsLost
		}
		var messages []netlink.Message
		if err == nil {
			messages, err = e.conn.Receive()
		}
		if err != nil && !isLost(err) {
			return events, fmt.Errorf("receive conntrack events: %w", err)
		}
		events = appendEvents(events, messages)
	}
}

func appendEvents(events []FlowEvent, messages []netlink.Message) []FlowEvent {
	for _, m := range messages {
		kind := uint16(m.Header.Type)
		if f, ok := decodeFlow(m.Data); ok && kind>>8 == unix.NFNL_SUBSYS_CTNETLINK {
			events = append(events, FlowEvent{Flow: f, Closed: kind&0xff == ctMsgDelete})
		}
	}
	return events
}

// Close ends the subscription; a waiting Receive returns.
func (e *FlowEvents) Close() error { return e.conn.Close() }

func isLost(err error) bool { return errors.Is(err, unix.ENOBUFS) }
