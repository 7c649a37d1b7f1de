package netstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var errShortRoute = errors.New("the kernel's description of a route is too short")

// Attributes and values of linux/rtnetlink.h and linux/nexthop.h that golang.org/x/sys lacks.
const (
	rtaNexthopID = 30

	nhaID        = 1
	nhaGroup     = 2
	nhaGroupType = 3
	nhaOIF       = 5
	nhaGateway   = 6

	groupResilient  = 1
	groupEntryBytes = 8
	nhmsgBytes      = 8
)

// routeMessage is a route as the kernel describes it.
type routeMessage struct {
	prefix   netip.Prefix
	table    uint32
	tos      uint8
	kind     uint8
	flags    uint32
	metric   uint32
	group    uint32 // id of its nexthop object; 0: none
	nextHops []NextHop
}

// usable reports whether the route concerns all packets to its prefix that are forwarded.
func (r *routeMessage) usable() bool {
	return r.table == unix.RT_TABLE_MAIN && r.tos == 0 && r.kind == unix.RTN_UNICAST && r.flags&unix.RTM_F_CLONED == 0
}

// decodeRoute decodes a message of type RTM_NEWROUTE.
func decodeRoute(b []byte) (r routeMessage, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, errShortRoute
	}
	family, length := b[0], b[1]
	r.tos, r.table, r.kind, r.flags = b[3], uint32(b[4]), b[7], binary.NativeEndian.Uint32(b[8:])
	dst := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	ad, err := netlink.NewAttributeDecoder(b[unix.SizeofRtMsg:])
	if err != nil {
		return r, fmt.Errorf("decode a route: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.RTA_DST:
			a, ok := netip.AddrFromSlice(ad.Bytes())
			if !ok {
				return r, errShortRoute
			}
			dst = a
		case unix.RTA_TABLE:
			r.table = ad.Uint32()
		case unix.RTA_PRIORITY:
			r.metric = ad.Uint32()
		case rtaNexthopID:
			r.group = ad.Uint32()
		case unix.RTA_MULTIPATH:
			if r.nextHops, err = decodeNextHops(ad.Bytes()); err != nil {
				return r, err
			}
		}
	}
	if err := ad.Err(); err != nil {
		return r, fmt.Errorf("decode a route: %w", err)
	}
	if r.prefix, err = dst.Prefix(int(length)); err != nil {
		return r, fmt.Errorf("decode a route: %w", err)
	}
	return r, nil
}

// decodeNextHops decodes structs rtnexthop with their attributes.
func decodeNextHops(b []byte) (all []NextHop, err error) {
	for len(b) > 0 {
		if len(b) < unix.SizeofRtNexthop {
			return nil, errShortRoute
		}
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop || length > len(b) {
			return nil, errShortRoute
		}
		hop := NextHop{Weight: int(b[3]) + 1, Dead: b[2]&unix.RTNH_F_DEAD != 0, Interface: int(binary.NativeEndian.Uint32(b[4:]))}
		ad, err := netlink.NewAttributeDecoder(b[unix.SizeofRtNexthop:length])
		if err != nil {
			return nil, fmt.Errorf("decode a next hop: %w", err)
		}
		for ad.Next() {
			switch v := ad.Bytes(); ad.Type() {
			case unix.RTA_GATEWAY:
				hop.Gateway, _ = netip.AddrFromSlice(v)
			case unix.RTA_VIA:
				if len(v) > 2 {
					hop.Gateway, _ = netip.AddrFromSlice(v[2:])
				}
			}
		}
		if err := ad.Err(); err != nil {
			return nil, fmt.Errorf("decode a next hop: %w", err)
		}
		all = append(all, hop)
		const align = unix.RTNH_ALIGNTO - 1
		b = b[min(len(b), (length+align)&^align):]
	}
	return all, nil
}

// nextHopObject is a nexthop object: one next hop, or a group of others.
type nextHopObject struct {
	id        uint32
	hop       NextHop
	members   []groupMember
	resilient bool
}

type groupMember struct {
	id     uint32
	weight int
}

// group is a group of next hops.
type group struct {
	nextHops  []NextHop
	resilient bool
}

// dumpGroups returns the groups of next hops by their ids.
func dumpGroups(conn *netlink.Conn) (map[uint32]group, error) {
	messages, err := dump(conn, unix.RTM_GETNEXTHOP, make([]byte, nhmsgBytes))
	if err != nil {
		return nil, err
	}
	objects := map[uint32]nextHopObject{}
	for _, m := range messages {
		o, err := decodeNextHopObject(m.Data)
		if err != nil {
			return nil, err
		}
		objects[o.id] = o
	}
	groups := map[uint32]group{}
	for id, o := range objects {
		if o.members == nil {
			continue
		}
		g := group{resilient: o.resilient}
		for _, m := range o.members {
			hop := objects[m.id].hop
			hop.Weight = m.weight
			g.nextHops = append(g.nextHops, hop)
		}
		groups[id] = g
	}
	return groups, nil
}

// decodeNextHopObject decodes a message of type RTM_NEWNEXTHOP. No next hop of a group is dead, because the kernel
// removes those that do not work from the group.
func decodeNextHopObject(b []byte) (o nextHopObject, err error) {
	if len(b) < nhmsgBytes {
		return o, errShortRoute
	}
	ad, err := netlink.NewAttributeDecoder(b[nhmsgBytes:])
	if err != nil {
		return o, fmt.Errorf("decode a next hop: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case nhaID:
			o.id = ad.Uint32()
		case nhaGroupType:
			o.resilient = ad.Uint16() == groupResilient
		case nhaOIF:
			o.hop.Interface = int(ad.Uint32())
		case nhaGateway:
			o.hop.Gateway, _ = netip.AddrFromSlice(ad.Bytes())
		case nhaGroup:
			for v := ad.Bytes(); len(v) >= groupEntryBytes; v = v[groupEntryBytes:] {
				const high = 5 // byte with the weight's upper half, since Linux 6.12
				o.members = append(o.members, groupMember{binary.NativeEndian.Uint32(v), (int(v[high])<<8 | int(v[4])) + 1})
			}
		}
	}
	if err := ad.Err(); err != nil {
		return o, fmt.Errorf("decode a next hop: %w", err)
	}
	return o, nil
}
