package rules

import (
	"fmt"
	"math/bits"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Marks are the bits of packet and connection marks that the waypoint uses. It leaves all others to other programs. The highest
// bit marks members' connections, the next three contain the kind of detour, and the rest the member.
type Marks uint32

// DefaultMarks avoid the default bits of other programs: 0x3f00 (mwan3), 0x4000 and 0x8000 (Kubernetes' kube-proxy), 0xff0000
// (Tailscale, OpenWrt's pbr). Calico's 0xffff0000 and Cilium's 0xffff1fff leave no sixteen bits free. Calico uses its highest
// byte last.
const DefaultMarks Marks = 0xff0000ff

const (
	kindBits = 3
	idBits   = 16 // of MemberID
	// leastMarks leaves room for 15 members.
	leastMarks = 1 + kindBits + 4
)

// Check returns an error if there are too few bits.
func (m Marks) Check() error {
	if n := bits.OnesCount32(uint32(m)); n < leastMarks {
		return fmt.Errorf("%#x has %d bits, and needs at least %d: one for all members' connections, %d for the kinds of detours, the others to distinguish members",
			uint32(m), n, leastMarks, kindBits)
	}
	return nil
}

// MaxMembers returns the number of members that the marks can distinguish.
func (m Marks) MaxMembers() int { return 1<<m.memberBits() - 1 }

func (m Marks) memberBits() int { return min(bits.OnesCount32(uint32(m))-1-kindBits, idBits) }

// Mark returns the mark of a member's connections of a kind of detour.
func (m Marks) Mark(id MemberID, kind wire.Kind) uint32 { return m.kind(kind) | m.member(id) }

// OfMark is the inverse of Mark. Bits that are not ours do not matter.
func (m Marks) OfMark(mark uint32) (id MemberID, kind wire.Kind, ours bool) {
	n := m.memberBits()
	value := m.gather(mark)
	id = MemberID(value & (1<<n - 1))
	kind = wire.Kind(value>>n&(1<<kindBits-1)) + wire.Mapped
	return id, kind, mark&m.ours() != 0 && id != 0
}

// Ours matches the conntrack entries of all members.
func (m Marks) Ours() netstate.MarkMatch { return netstate.MarkMatch{Value: m.ours(), Mask: m.ours()} }

// Of matches the conntrack entries of one member.
func (m Marks) Of(id MemberID) netstate.MarkMatch {
	return netstate.MarkMatch{Value: m.ours() | m.member(id), Mask: m.ours() | m.members()}
}

// OfKind matches the conntrack entries of all members' connections of a kind.
func (m Marks) OfKind(kind wire.Kind) netstate.MarkMatch {
	return netstate.MarkMatch{Value: m.kind(kind), Mask: m.kinds()}
}

// ours returns the bit that all members' connections have.
func (m Marks) ours() uint32 { return 1 << (bits.Len32(uint32(m)) - 1) }

// kind returns the bits of a kind of detour, without a member.
func (m Marks) kind(kind wire.Kind) uint32 {
	return m.ours() | m.spread(uint32(kind-wire.Mapped)<<m.memberBits())
}

// tunnelled returns the bits of a connection that came to the converter out of a tunnel. It is no member's, so it lacks the
// bit of ours.
func (m Marks) tunnelled() uint32 { return m.kind(wire.WireGuard) &^ m.ours() }

// kinds returns the mask of the kind, including the bit of ours.
func (m Marks) kinds() uint32 { return m.ours() | m.spread((1<<kindBits-1)<<m.memberBits()) }

func (m Marks) member(id MemberID) uint32 { return m.spread(uint32(id)) }

// members returns the mask of the member.
func (m Marks) members() uint32 { return m.spread(1<<m.memberBits() - 1) }

// spread distributes the bits of a value over the bits of the mask, from the lowest on.
func (m Marks) spread(value uint32) (mark uint32) {
	for left := uint32(m); left != 0 && value != 0; value >>= 1 {
		lowest := left & -left
		if value&1 != 0 {
			mark |= lowest
		}
		left &^= lowest
	}
	return mark
}

// gather is the inverse of spread.
func (m Marks) gather(mark uint32) (value uint32) {
	left := uint32(m)
	for i := 0; left != 0; i++ {
		lowest := left & -left
		if mark&lowest != 0 {
			value |= 1 << i
		}
		left &^= lowest
	}
	return value
}
