package probe

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/packet"
)

func env4() Env {
	return Env{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.2"), rand.New(rand.NewPCG(1, 2))}
}

func env6() Env {
	return Env{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), rand.New(rand.NewPCG(1, 2))}
}

func build1(t testing.TB, text string, env Env) *packet.Packet {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	built, err := p.Build(env)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := built.Packet.Verify(); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return built.Packet
}

func TestOptions(t *testing.T) {
	for text, want := range map[string]string{
		"IP / tcp{dst=443} / mss(1460) / MPCAPABLE / WSCALE": "020405b4 1e040101 03030e01",
		"IP/TCP/MSS(1400)": "02040578",
		"IP.TCP.MSS":       "020405b4",
		"IP + TCP + TS":    "0101080a 00003039 00000000",
		"TCP / NOP / NOP / timestamp{val=1,ecr=2}": "0101080a 00000001 00000002",
		"IP / TCP / SACKP":                         "01010402",
		"IP / TCP / nop() / nop{} / sack(1, 2)":    "0101050a 00000001 00000002",
		"IP / TCP / mpcapable{version=0, key=1}":   "1e0c0001 00000000 00000001",
		"IP / TCP / mpcapable{key=1, peer=2}":      "1e140101 00000000 00000001 00000000 00000002",
		"IP / TCP / mpjoin{token=1,nonce=2}":       "1e0c1001 00000001 00000002",
		"IP / TCP / dss{ack=1}":                    "1e0c2003 00000000 00000001",
		"IP / TCP / dss{dsn=1,ssn=2,len=3}":        "1e12200c 00000000 00000001 00000002 00030000",
		"IP / TCP / TFO":                           "01012202",
		`IP / TCP / tfo('abcd') / NOP / NOP`:       "22066162 63640101",
		"IP / TCP / inband('192.0.2.7')":           "fe08dc01 c0000207",
		`IP / TCP / option(77, "\x01\x02")`:        "4d040102",
		"IP / TCP / mpprio{backup=1} / NOP":        "1e035101",
	} {
		p := build1(t, text, env4())
		if got := hex.EncodeToString(p.TCP.OptionBytes()); got != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	p := build1(t, "IP / TCP", env4())
	if p.TCP.DstPort != 80 || p.TCP.Window != 5840 || p.TCP.Flags != packet.SYN || p.TCP.Ack != 0 || p.TCP.SrcPort == 0 || p.V4.ID == 0 {
		t.Errorf("defaults: %+v, %+v", p.V4, p.TCP)
	}
	p = build1(t, "IP / tcp{src=2345,flags=0x12,ack=345678}", env4())
	if p.TCP.SrcPort != 2345 || p.TCP.Flags != packet.SYN|packet.ACK || p.TCP.Ack != 345678 {
		t.Errorf("%+v", p.TCP)
	}
	p = build1(t, "ip{id=7, ecn=2, dscp=46, dst='203.0.113.5'} / udp{dst=99} / raw('data')", env4())
	if p.V4.ID != 7 || p.V4.TOS != 46<<2|2 || p.V4.Dst.String() != "203.0.113.5" || p.UDP.DstPort != 99 || string(p.Payload) != "data" {
		t.Errorf("%+v %+v %q", p.V4, p.UDP, p.Payload)
	}
	p = build1(t, "IPv6 / udp{dst=56987} / raw('payload test')", env6())
	if p.UDP.DstPort != 56987 || string(p.Payload) != "payload test" {
		t.Errorf("%+v", p.UDP)
	}
	p = build1(t, "ipv6{tc=2, flowlabel=77} / ICMP", env6())
	if p.V6.Class != 2 || p.V6.FlowLabel != 77 || p.ICMP.Type != 128 {
		t.Errorf("%+v %+v", p.V6, p.ICMP)
	}
	p = build1(t, "TCP / convert{server='192.0.2.9', port=443}", env6())
	if p.V6 == nil || len(p.Payload) != 24 {
		t.Errorf("%+v, %d bytes", p, len(p.Payload))
	}
	for text, want := range map[string]uint8{"ip{proto=132} / raw('sctp')": 132, "ip{proto=6} / TCP": 6, "ip{id=7, proto=17} / UDP": 17, "ip{id=0, proto=47}": 47} {
		if p := build1(t, text, env4()); p.V4.Protocol != want {
			t.Errorf("%s: %+v", text, p.V4)
		}
	}
}

func TestBadProbes(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "a name such as IP or tcp is missing",
		"IP /":                      "a name such as IP",
		"IP / tcp{dst=70000}":       "dst must be between 0 and 65535, not 70000",
		"IP / tcp{port=5}":          `there is no argument "port"; it has [ack dst flags`,
		"IP / tcp{dst=1, dst=2}":    "dst is given twice",
		"IP / tcp{dst='web'}":       `dst must be a number, not "web"`,
		"IP / tcp{dst=5":            ", or } is missing",
		"IP / mss(5)":               "mss is a TCP option: write tcp{} before it",
		"IP / TCP / TPC":            `there is no macro "TPC"; did you mean "TCP"?`,
		"IP / tpc{}":                `there is no function "tpc"; did you mean "tcp"?`,
		"IP / tcp":                  "tcp is a function: write tcp{} or tcp()",
		"TCP / IP":                  "ip cannot follow tcp",
		"IP / TCP / UDP":            "udp cannot follow tcp",
		"IP / TCP raw('x')":         "join layers by one of the characters",
		"IP / TCP / raw('x":         "the string has no end",
		`IP / TCP / raw('\q')`:      `\q is no escape`,
		"IP / TCP / raw(5)":         "payload must be a string in quotes",
		"IP / TCP / sack(1)":        "left and right edges",
		"IP / TCP / WSCALE(3)":      "WSCALE stands for wscale / nop and takes no arguments",
		"IP / TCP / mss(1, 2)":      "2 arguments are too many",
		"IPv6 / TCP":                "write IP or ip{}",
		"IP":                        "the probe has no TCP, UDP or ICMP",
		"ip{id=7, proto=132}":       "nothing would tell its probes apart: leave out id",
		"ip{proto=17} / TCP":        "protocol 17 cannot be tcp's: leave out proto, or give the header by raw()",
		"ip{proto=6} / UDP":         "protocol 6 cannot be udp's",
		"ip{proto=99} / ICMP":       "protocol 99 cannot be icmp's",
		"ip{dst='nowhere'} / TCP":   `"nowhere" is not an IP address`,
		"ip{dst='::1'} / TCP":       "another IP version",
		"IP / TCP / tfo('abc')":     "a cookie has 4 to 16 bytes",
		"IP / TCP / MD5/MD5/MD5":    "options",
		"IP / tcp{seq=0x1ffffffff}": "between 0 and 4294967296",
		strings.Repeat("IP/", 9999): "at most 16384 are allowed",
		"IP / tcp{flags=-1}":        "between 0 and 4095, not -1",
		"inband('::1')":             "room for an IPv4 address",
	} {
		p, err := Parse(text)
		if err == nil {
			_, err = p.Build(env4())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"IP / tcp{dst=443} / mss(1460) / MPCAPABLE / WSCALE", `IPv6/udp{dst=5}/raw('a\x00\'b')`, "TCP / sack(1,2,3,4)",
		"ip{proto=5}.raw(\"x\")", "tcp({dst=5})", "IP / TCP / convert{server='::1'}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		for _, env := range []Env{env4(), env6()} {
			built, err := p.Build(env)
			if err != nil {
				continue
			}
			if _, err := packet.Parse(built.Packet.Bytes()); err != nil && built.Packet.V4 != nil && built.Packet.V4.Protocol == 0 {
				t.Errorf("%q makes a packet that cannot be read: %v", text, err)
			}
		}
	})
}
