package directory

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// What was measured travels with the record, under its signature. A full record takes as much of it as there is room for.
func TestWithMeasured(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, testCollective)
	alice := a.issue(t, strings.Repeat("a", 63), terms{subnet: "fd00:1111:1111:1111:1111:1111:1111:0/112"})
	var all []Measurement
	for i := range MaxMeasured + 3 {
		all = append(all, Measurement{Waypoint: strings.Repeat("w", 62) + fmt.Sprint(i%10), Loss: 1, Goodput: 200})
	}
	r := alice.record(1, now).WithMeasured(all[:10])
	if !slices.Equal(r.Measured, all[:MaxMeasured]) {
		t.Errorf("%d of %d measurements", len(r.Measured), MaxMeasured)
	}
	v, err := alice.sign(t, r).Verify(a.trust(t), now)
	if err != nil || !slices.Equal(v.Record.Measured, r.Measured) {
		t.Fatalf("%+v, %v", v, err)
	}
	full := alice.record(1, now)
	full.Addresses, full.Key, full.Capacity, full.Region = nil, WireGuardKey{1}, 1e18, strings.Repeat("e", maxWord)
	for i := range maxAddresses {
		full.Addresses = append(full.Addresses, netip.MustParseAddr(fmt.Sprintf("2001:db8:1111:1111:1111:1111:1111:111%d", i)))
	}
	full.Roles, full.Kinds = nil, nil
	for i := range maxWords {
		full.Roles, full.Kinds = append(full.Roles, strings.Repeat("r", maxWord-1)+fmt.Sprint(i)), append(full.Kinds, strings.Repeat("k", maxWord-1)+fmt.Sprint(i))
	}
	full = full.WithMeasured(all[:MaxMeasured])
	if n := len(full.Measured); n == 0 || n == MaxMeasured {
		t.Fatalf("%d measurements in a full record", n)
	}
	if _, err := Sign(full, alice.chain, alice.signature); err != nil {
		t.Error(err)
	}
	if none := full.WithMeasured(nil); none.Measured != nil {
		t.Errorf("%+v", none.Measured)
	}
}
