package client

import (
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/path"
)

// manyKernel has so many subflows, every tenth of which somebody else opened.
type manyKernel struct {
	mptcp.Kernel
	subflows int
}

func (k *manyKernel) ChecksumErrors() (uint64, error) { return 7, nil }
func (k *manyKernel) Subflows(yield func(*mptcp.Subflow) bool) error {
	for i := range k.subflows {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))
		if !yield(&mptcp.Subflow{Token: uint32(i), Local: at, ServerSide: i%10 == 9}) {
			break
		}
	}
	return nil
}

// A complete sample comes in parts of the same memory, the last of which is marked even if it is empty.
func TestSampleInParts(t *testing.T) {
	for _, subflows := range []int{0, 1, partSize, 10 * partSize, 10*partSize + 1, 5000} {
		s := sampler{kernel: &manyKernel{subflows: subflows}}
		parts, seen, ended := 0, 0, false
		err := s.all(func(part path.Measured) {
			if part.Continues != (parts > 0) || ended || !part.Complete || part.ChecksumErrors != 7 || len(part.Samples) > partSize {
				t.Fatalf("%d subflows: part %d is %+v", subflows, parts, part)
			}
			for _, sm := range part.Samples {
				if seen%10 == 9 {
					seen++
				}
				if sm.Token != path.Token(seen) {
					t.Fatalf("%d subflows: %d comes after %d", subflows, sm.Token, seen)
				}
				seen++
			}
			parts, ended = parts+1, !part.More
		})
		if err != nil || !ended || subflows-seen > 1 {
			t.Errorf("%d subflows: %d seen in %d parts, ended %v, %v", subflows, seen, parts, ended, err)
		}
		if cap(s.part) > 2*partSize {
			t.Errorf("%d subflows: memory for %d samples", subflows, cap(s.part))
		}
	}
}
