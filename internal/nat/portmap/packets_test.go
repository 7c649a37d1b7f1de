package portmap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Packets made by hand from RFC 6887 and RFC 6886.
const (
	pcpMapRequest = "02 01 0000 00000258 00000000000000000000ffffc0a80102" +
		"0102030405060708090a0b0c 11 000000 b268 b268 00000000000000000000ffff00000000"
	pcpMapResponse = "02 81 00 00 00000258 00000e10 000000000000000000000000" +
		"0102030405060708090a0b0c 11 000000 b268 c350 00000000000000000000ffffcb007109"
	pmpAddressResponse = "00 80 0000 00000e10 cb007109"
	pmpMapResponse     = "00 81 0000 00000e10 b268 c350 00000258"
)

func TestPCPPackets(t *testing.T) {
	p := &pcp{network: Network{Own: netip.MustParseAddr("192.168.1.2")}}
	m := pcpMap{
		nonce: [12]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, protocol: 17, internal: 45672,
		external: netip.MustParseAddrPort("0.0.0.0:45672"),
	}
	if got, want := m.append(p.header(opMap, lifetime)), unhex(t, pcpMapRequest); !bytes.Equal(got, want) {
		t.Errorf("request\n%x, want\n%x", got, want)
	}
	r, got, err := parsePCP(unhex(t, pcpMapResponse))
	m.external = netip.MustParseAddrPort("203.0.113.9:50000")
	if err != nil || got != m || r != (pcpResponse{op: opMap, lifetime: 10 * time.Minute, epoch: 3600}) {
		t.Errorf("response %+v %+v %v", r, got, err)
	}
}

func TestPMPPackets(t *testing.T) {
	r, err := parsePMP(unhex(t, pmpAddressResponse))
	if err != nil || r != (pmpResponse{op: pmpAddress, epoch: 3600, address: netip.MustParseAddr("203.0.113.9")}) {
		t.Errorf("address: %+v %v", r, err)
	}
	r, err = parsePMP(unhex(t, pmpMapResponse))
	if err != nil || r != (pmpResponse{op: pmpMapUDP, epoch: 3600, internal: 45672, external: 50000, lifetime: 10 * time.Minute}) {
		t.Errorf("mapping: %+v %v", r, err)
	}
}

func TestRefusals(t *testing.T) {
	var refused *RefusedError
	for _, code := range []byte{1, 2, 8, 13, 14, 255} {
		b := unhex(t, pcpMapResponse)
		b[3] = code
		if _, _, err := parsePCP(b); !errors.As(err, &refused) || refused.Code != int(code) || refused.Why == "" {
			t.Errorf("PCP, code %d: %v", code, err)
		}
		b = unhex(t, pmpMapResponse)
		b[3] = code
		if _, err := parsePMP(b); !errors.As(err, &refused) || refused.Code != int(code) || refused.Why == "" {
			t.Errorf("NAT-PMP, code %d: %v", code, err)
		}
	}
	if _, _, err := parsePCP(unhex(t, "0081000100000e10")); !errors.As(err, &refused) {
		t.Errorf("a gateway that knows NAT-PMP only: %v", err)
	}
}

// Packets that are cut or of another kind are no answers.
func TestForeignPackets(t *testing.T) {
	for i := range unhex(t, pcpMapResponse) {
		if _, _, err := parsePCP(unhex(t, pcpMapResponse)[:i]); !errors.Is(err, errOther) {
			t.Errorf("PCP, %d bytes: %v", i, err)
		}
	}
	for _, whole := range []string{pmpMapResponse, pmpAddressResponse} {
		for i := range unhex(t, whole) {
			if _, err := parsePMP(unhex(t, whole)[:i]); !errors.Is(err, errOther) {
				t.Errorf("NAT-PMP, %d bytes: %v", i, err)
			}
		}
	}
	for _, b := range [][]byte{unhex(t, pcpMapRequest), make([]byte, maxAnswer+4), bytes.Repeat([]byte{2, 0x81, 0, 0}, 1000)} {
		if _, _, err := parsePCP(b); !errors.Is(err, errOther) {
			t.Errorf("PCP, %.8x: %v", b, err)
		}
	}
}

func TestLifetimeIsBounded(t *testing.T) {
	b := unhex(t, pcpMapResponse)
	copy(b[4:], "\xff\xff\xff\xff")
	if r, _, err := parsePCP(b); err != nil || r.lifetime != maxLifetime {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzParsePCP(f *testing.F) {
	f.Add(unhex(f, pcpMapResponse))
	f.Add(unhex(f, pcpMapResponse)[:pcpHeader])
	f.Add(unhex(f, pmpMapResponse))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, m, err := parsePCP(b)
		if err == nil && (r.result != 0 || r.op != opMap && m != (pcpMap{}) || r.lifetime > maxLifetime) {
			t.Errorf("%x: %+v %+v", b, r, m)
		}
	})
}

func FuzzParsePMP(f *testing.F) {
	f.Add(unhex(f, pmpMapResponse))
	f.Add(unhex(f, pmpAddressResponse))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parsePMP(b)
		if err == nil && (r.op == pmpAddress) != r.address.IsValid() {
			t.Errorf("%x: %+v", b, r)
		}
	})
}

func TestEpoch(t *testing.T) {
	begin := time.Unix(1e9, 0)
	for _, c := range []struct {
		name   string
		apart  time.Duration
		values []uint32
		forgot bool // expected for the last value
	}{
		{"the first", time.Minute, []uint32{0}, false},
		{"as it should be", time.Minute, []uint32{100, 160, 220}, false},
		{"a slow clock", time.Minute, []uint32{100, 157}, false},
		{"a restart", time.Minute, []uint32{5000, 12}, true},
		{"a restart, long ago", time.Minute, []uint32{10, 30}, true},
		{"a restart soon after the start", 6 * time.Second, []uint32{1, 0}, true},
		{"packets overtook each other", time.Second, []uint32{100, 99}, false},
		{"a leap", time.Minute, []uint32{100, 4000}, true},
		{"after the restart", time.Minute, []uint32{5000, 12, 72}, false},
	} {
		var e epoch
		var forgot bool
		for i, v := range c.values {
			forgot = e.next(v, begin.Add(time.Duration(i)*c.apart))
		}
		if forgot != c.forgot {
			t.Errorf("%s: %v", c.name, forgot)
		}
	}
}
