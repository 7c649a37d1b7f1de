package wireguard

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func key(b byte) (k [32]byte) {
	for i := range k {
		k[i] = b
	}
	return k
}

var compareNetip = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

const uapiText = `private_key=0101010101010101010101010101010101010101010101010101010101010101
listen_port=51820
fwmark=1
public_key=0202020202020202020202020202020202020202020202020202020202020202
preshared_key=0303030303030303030303030303030303030303030303030303030303030303
protocol_version=1
endpoint=[2001:db8::1]:99
last_handshake_time_sec=1893456000
last_handshake_time_nsec=5
tx_bytes=18446744073709551615
rx_bytes=7
persistent_keepalive_interval=25
allowed_ip=10.7.0.9/32
allowed_ip=fd07::9/128
public_key=0404040404040404040404040404040404040404040404040404040404040404
last_handshake_time_sec=0
last_handshake_time_nsec=0
`

func TestParseUAPI(t *testing.T) {
	got, err := parseUAPI(uapiText)
	want := uapiState{port: 51820, peers: []PeerState{
		{
			Peer: Peer{
				PublicKey: key(2), Endpoint: netip.MustParseAddrPort("[2001:db8::1]:99"),
				Allowed: hostPrefixes(clientInner...), Keepalive: 25 * time.Second,
			},
			LastHandshake: time.Date(2030, 1, 1, 0, 0, 0, 5, time.UTC), Received: 7, Sent: 1<<64 - 1,
		},
		{Peer: Peer{PublicKey: key(4)}},
	}}
	if diff := cmp.Diff(want, got, compareNetip, cmp.AllowUnexported(uapiState{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, bad := range []string{
		"no value\n", "listen_port=65536\n", "public_key=02\n", "public_key=zz\n",
		"public_key=" + strings.Repeat("02", 32) + "\nendpoint=here\n",
		"public_key=" + strings.Repeat("02", 32) + "\nallowed_ip=10.0.0.1\n",
		"public_key=" + strings.Repeat("02", 32) + "\nlast_handshake_time_sec=1e9\n",
		"public_key=" + strings.Repeat("02", 32) + "\nrx_bytes=-1\n",
	} {
		if got, err := parseUAPI(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestChangeUAPI(t *testing.T) {
	peer := Peer{
		PublicKey: key(2), Endpoint: netip.MustParseAddrPort("192.0.2.1:99"),
		Allowed: hostPrefixes(clientInner...), Keepalive: 25 * time.Second,
	}
	head := "public_key=" + strings.Repeat("02", 32) + "\n"
	for _, tt := range []struct {
		change
		want string
	}{
		{change{Peer: peer}, head + "persistent_keepalive_interval=25\nallowed_ip=10.7.0.9/32\nallowed_ip=fd07::9/128\n"},
		{
			change{Peer: peer, move: true, replaceAllowed: true},
			head + "endpoint=192.0.2.1:99\npersistent_keepalive_interval=0\npersistent_keepalive_interval=25\n" +
				"replace_allowed_ips=true\nallowed_ip=10.7.0.9/32\nallowed_ip=fd07::9/128\n",
		},
	} {
		if diff := cmp.Diff(tt.want, tt.uapi()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAlive(t *testing.T) {
	now := time.Unix(1e9, 0)
	for age, want := range map[time.Duration]bool{-time.Second: true, 0: true, 179 * time.Second: true, 180 * time.Second: false} {
		if got := (PeerState{LastHandshake: now.Add(-age)}).Alive(now); got != want {
			t.Errorf("a handshake %v ago: %v", age, got)
		}
	}
	if (PeerState{}).Alive(now) {
		t.Error("alive without a handshake")
	}
}

func FuzzParseUAPI(f *testing.F) {
	f.Add(uapiText)
	f.Add("public_key=\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseUAPI(text)
		if err == nil && len(s.peers) != strings.Count("\n"+text, "\npublic_key=") {
			t.Errorf("%d peers of %q", len(s.peers), text)
		}
	})
}
