package chain

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/trace/script"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// play runs a script on a path in virtual time, and returns its output.
func play(t *testing.T, code string, hops []Hop, server Server) (out string, held, open int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := New(hops, time.Millisecond, server)
		defer net.Close()
		var b strings.Builder
		err = script.Run(t.Context(), "test.lua", code, &script.Host{
			Net: net, Source: alice.Addr(), Destination: bob.Addr(), Name: "bob", Random: rand.New(rand.NewPCG(5, 6)), Out: &b,
			Hold: func(uint16, uint16) (func() error, error) {
				held++
				open++
				closed := false
				return func() error {
					if !closed {
						closed = true
						open--
					}
					return nil
				}, nil
			},
		}, script.Limits{Time: time.Hour})
		out = b.String()
	})
	return out, held, open, err
}

// The thesis's script of figure 3.16, as it is printed there.
func TestFigure316(t *testing.T) {
	code, err := os.ReadFile("../../../internal/trace/script/testdata/nat-ftp.lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		box    middlebox.Kind
		server Server
		want   string
	}{
		{middlebox.FTPGateway, Multipath(21), "There is a NAT before 192.0.2.4\n"},
		{middlebox.None, Multipath(21), ""},
		{middlebox.None, Multipath(80), "Server does not seems to be a FTP server\n"},
		{middlebox.None, nil, "Server did not reply...\n"},
	} {
		hops := make([]Hop, 6)
		hops[2].Box = test.box
		out, held, open, err := play(t, string(code), hops, test.server)
		if err != nil || out != test.want || held != 1 || open != 0 {
			t.Errorf("%q: printed %q, want %q; %d filters, %d open; %v", test.box, out, test.want, held, open, err)
		}
	}
}

func TestScript(t *testing.T) {
	hops := make([]Hop, 4)
	hops[1].Box = middlebox.PadMPTCP
	out, _, open, err := play(t, `
		p = IP / TCP / mss(1460) / MPCAPABLE / WSCALE
		print(p)
		filter(p) -- and never closed
		answer = tracebox(p, {callback = function(ttl, from, sent, reply, mods)
			print(ttl, from, sent:has("mpcapable"), mods)
		end})
		print(answer:source(), answer:tcp():getflags(), answer:has("mss"), answer:has("mpcapable"), #answer:payload())
	`, hops, Multipath(80))
	want := "TCP port 80, SYN with MSS 1460, MP_CAPABLE (MPTCP), window scale 14\n" +
		"1\t192.0.2.1\ttrue\tnil\n2\t192.0.2.2\ttrue\tnil\n" +
		"3\t192.0.2.3\ttrue\tTCP::CheckSum -TCPOptionMPTCPCapable\n4\t192.0.2.4\ttrue\tTCP::CheckSum -TCPOptionMPTCPCapable\n" +
		"203.0.113.80\t18\ttrue\tfalse\t0\n"
	if err != nil || out != want || open != 0 {
		t.Errorf("printed:\n%s\nwant:\n%s\n%d filters open, %v", out, want, open, err)
	}
}
