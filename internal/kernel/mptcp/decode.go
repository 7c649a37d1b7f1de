package mptcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

const (
	netlinkHeaderLen = 16
	genlHeaderLen    = 4
)

// decodeEvents calls yield for each event in one netlink datagram. It skips messages of other families and events
// of unknown kinds, which newer kernels may send.
func decodeEvents(b []byte, family uint16, yield func(Event)) error {
	for len(b) > 0 {
		m, rest, err := nextMessage(b)
		if err != nil {
			return err
		}
		b = rest
		if m.typ != family || len(m.payload) < genlHeaderLen {
			continue
		}
		kind := EventKind(m.payload[0])
		if _, known := kindNames[kind]; !known {
			continue
		}
		ev, err := decodeEvent(kind, m.payload[genlHeaderLen:])
		if err != nil {
			return fmt.Errorf("decode %v event: %w", kind, err)
		}
		yield(ev)
	}
	return nil
}

// message is one netlink message.
type message struct {
	typ     uint16
	seq     uint32
	payload []byte
}

// nextMessage splits off the first netlink message of b.
func nextMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < netlinkHeaderLen {
		return message{}, nil, errTruncated
	}
	n := binary.NativeEndian.Uint32(b)
	if n < netlinkHeaderLen || uint64(n) > uint64(len(b)) {
		return message{}, nil, errTruncated
	}
	m = message{
		typ:     binary.NativeEndian.Uint16(b[4:]),
		seq:     binary.NativeEndian.Uint32(b[8:]),
		payload: b[netlinkHeaderLen:n],
	}
	return m, b[min(align4(int(n)), len(b)):], nil
}

func decodeEvent(kind EventKind, b []byte) (Event, error) {
	ev := Event{Kind: kind}
	var local, remote netip.Addr
	var localPort, remotePort uint16
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return Event{}, err
		}
		b = rest
		switch typ {
		case eventToken:
			ev.Token = u32(v)
		case eventLocalID:
			ev.LocalID = u8(v)
		case eventRemoteID:
			ev.RemoteID = u8(v)
		case eventLocal4:
			local = ip4(v)
		case eventLocal6:
			local = ip6(v)
		case eventRemote4:
			remote = ip4(v)
		case eventRemote6:
			remote = ip6(v)
		case eventLocalPort:
			localPort = be16(v)
		case eventRemotePort:
			remotePort = be16(v)
		case eventBackup:
			ev.Backup = u8(v) != 0
		case eventError:
			ev.Err = syscall.Errno(u8(v))
		case eventFlags:
			flags := u16(v)
			ev.DenyJoinInitial = flags&eventFlagDenyJoinID0 != 0
			ev.ServerSide = ev.ServerSide || flags&eventFlagServerSide != 0
		case eventTimeout:
			ev.Timeout = time.Duration(u32(v)) * time.Millisecond
		case eventIfIndex:
			ev.IfIndex = int(int32(u32(v)))
		case eventResetReason:
			ev.ResetReason = ResetReason(u32(v))
		case eventResetFlags:
			ev.ResetFlags = u32(v)
		case eventServerSide:
			ev.ServerSide = ev.ServerSide || u8(v) != 0
		}
	}
	if local.IsValid() {
		ev.Local = netip.AddrPortFrom(local, localPort)
	}
	if remote.IsValid() {
		ev.Remote = netip.AddrPortFrom(remote, remotePort)
	}
	return ev, nil
}
