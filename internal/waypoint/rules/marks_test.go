package rules_test

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

var kinds = []wire.Kind{wire.Mapped, wire.InBand, wire.WireGuard, wire.OpenVPN}

// For any mask, a mark distinguishes members and kinds, keeps to these bits, and is read whatever the
// other bits are.
func TestMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rules.Marks(rapid.Uint32().Draw(t, "mask"))
		if m.Check() != nil {
			if bits.OnesCount32(uint32(m)) >= 8 {
				t.Fatalf("%#x is refused: %v", m, m.Check())
			}
			t.Skip("too few bits")
		}
		id := rules.MemberID(rapid.IntRange(1, m.MaxMembers()).Draw(t, "id"))
		other := rules.MemberID(rapid.IntRange(1, m.MaxMembers()).Draw(t, "other"))
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		mark := m.Mark(id, kind)
		if mark&^uint32(m) != 0 {
			t.Fatalf("%#x is beyond %#x", mark, m)
		}
		foreign := rapid.Uint32().Draw(t, "foreign") &^ uint32(m)
		if gotID, gotKind, ours := m.OfMark(mark | foreign); !ours || gotID != id || gotKind != kind {
			t.Fatalf("%d, %v: got %d, %v, %v", id, kind, gotID, gotKind, ours)
		}
		if _, _, ours := m.OfMark(foreign); ours {
			t.Fatalf("%#x is taken for ours", foreign)
		}
		matches := func(mark uint32, value, mask uint32) bool { return mark&mask == value }
		if ours, of := m.Ours(), m.Of(id); !matches(mark|foreign, ours.Value, ours.Mask) || !matches(mark|foreign, of.Value, of.Mask) {
			t.Fatalf("%#x does not match %+v and %+v", mark, ours, of)
		}
		if of := m.Of(other); other != id && matches(mark, of.Value, of.Mask) {
			t.Fatalf("%#x matches another member's %+v", mark, of)
		}
	})
}

// The default bits do not collide with other programs', and suffice for thousands of members.
func TestDefaultMarks(t *testing.T) {
	for who, mask := range map[string]uint32{"mwan3": 0x3f00, "kube-proxy": 0xc000, "Tailscale": 0xff0000} {
		if uint32(rules.DefaultMarks)&mask != 0 {
			t.Errorf("%#x has bits of %s's %#x", rules.DefaultMarks, who, mask)
		}
	}
	if n := rules.DefaultMarks.MaxMembers(); n != 4095 {
		t.Errorf("%d members", n)
	}
}
