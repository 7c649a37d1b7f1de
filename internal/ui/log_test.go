package ui

import (
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func TestLog(t *testing.T) {
	at := netip.MustParseAddrPort
	opened := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	up, down := uint64(1200), uint64(98.7e6)
	whole := api.Log{
		Flows: []api.LogFlow{
			{Opened: opened, Closed: opened.Add(63 * time.Second), Member: "alice", Serial: "0a", Kind: "mapped", Client: at("192.0.2.1:40000"),
				Server: at("203.0.113.5:443"), Egress: at("198.51.100.9:40111"), BytesFromClient: &up, BytesToClient: &down, Session: "0123456789abcdef0123456789abcdef"},
			{Opened: opened.Add(time.Hour), Member: "carol\x1b[2J", Serial: "0c", Kind: "wireguard", Client: at("10.9.0.5:5"),
				Server: at("[2001:db8::5]:22"), Egress: at("[2001:db8::9]:5")},
		},
		Sessions: []api.LogSession{
			{Session: "0123456789abcdef0123456789abcdef", Collective: "Detours of Berlin", Waypoint: "bob", Member: "alice", Serial: "0a",
				Opened: opened, Stated: opened.Add(-time.Second), Message: []byte("said"), Signature: []byte("signed"), Chain: [][]byte{[]byte("who"), []byte("by whom")}, Proven: true},
			{Session: "1123456789abcdef0123456789abcdef", Collective: "Detours of Berlin", Waypoint: "bob", Member: "alice", Serial: "0a",
				Opened: opened, Stated: opened, Why: "alice has not signed this statement"},
		},
	}
	for name, l := range map[string]api.Log{"whole": whole, "none": {}} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := Log(&b, l); err != nil {
				t.Fatal(err)
			}
			compare(t, "testdata/log-"+name+".txt", b.String())
		})
	}
	onTerminals(t, "log-whole", []int{60, 80}, func(p *printer) error { return p.log(&whole) })
}

// On a terminal, the bytes of the evidence stay whole, so that they can be copied.
func TestEvidenceIsNotFolded(t *testing.T) {
	der := make([]byte, 600)
	var b strings.Builder
	if err := (&printer{w: &b, columns: 60}).log(&api.Log{Flows: []api.LogFlow{{}}, Sessions: []api.LogSession{{Message: der, Signature: der, Chain: [][]byte{der, der}}}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), base64.StdEncoding.EncodeToString(der)+"\n"); n != 4 {
		t.Errorf("%d of 4 are whole:\n%s", n, &b)
	}
}
