package openvpn

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A client that connects, as OpenVPN 2.6.14 tells it.
var connectLines = []string{
	"CONNECT,7,1", "ENV,n_clients=0", "ENV,IV_VER=2.6.14", "ENV,untrusted_port=40318",
	"ENV,untrusted_ip=192.0.2.2", "ENV,common_name=alice", "ENV,tls_id_0=CN=alice", "ENV,END",
}

func feed(n *clientNotices, lines []string) (all []clientNotice) {
	for _, line := range lines {
		if c, ok := n.add(line); ok {
			all = append(all, c)
		}
	}
	return all
}

func TestClientNotices(t *testing.T) {
	all := feed(&clientNotices{}, append([]string{
		"ENV,stray=1", "ENV,END", // without a head
		"ADDRESS,7,10.77.0.2,1", "ENV,END", // has no lines of its own
		"CONNECT,x y,1", "ENV,END", // a number that is none must not get into a command
	}, connectLines...))
	if len(all) != 1 {
		t.Fatalf("%d notices: %+v", len(all), all)
	}
	c := all[0]
	if c.event != "CONNECT" || c.cid != "7" || c.kid != "1" || c.env["common_name"] != "alice" || c.env["tls_id_0"] != "CN=alice" {
		t.Errorf("read %+v", c)
	}
	if remote, err := c.remote(); err != nil || remote != netip.MustParseAddrPort("192.0.2.2:40318") {
		t.Errorf("remote %v, %v", remote, err)
	}
}

func TestRemote(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		want string // empty: an error
	}{
		"IPv6":    {map[string]string{"trusted_ip6": "2001:db8::1", "trusted_port": "1"}, "[2001:db8::1]:1"},
		"mapped":  {map[string]string{"trusted_ip6": "::ffff:192.0.2.1", "trusted_port": "1"}, "192.0.2.1:1"},
		"zone":    {map[string]string{"untrusted_ip6": "fe80::1%eth0", "untrusted_port": "9"}, "[fe80::1]:9"},
		"none":    {map[string]string{"trusted_port": "1"}, ""},
		"no port": {map[string]string{"trusted_ip": "192.0.2.1"}, ""},
		"port":    {map[string]string{"trusted_ip": "192.0.2.1", "trusted_port": "65536"}, ""},
		"address": {map[string]string{"trusted_ip": "here", "trusted_port": "1"}, ""},
	} {
		got, err := clientNotice{env: test.env}.remote()
		if (err != nil) != (test.want == "") || err == nil && got.String() != test.want {
			t.Errorf("%s: %v, %v; want %q", name, got, err, test.want)
		}
	}
}

func FuzzClientNotices(f *testing.F) {
	f.Add(strings.Join(connectLines, "\n"))
	f.Add("DISCONNECT,4294967295\nENV,END\nREAUTH,0,2\nENV,=\nENV,END")
	f.Add("CONNECT,1,1\nENV,trusted_ip6=fe80::1%x\nENV,trusted_port=1\nENV,END")
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range feed(&clientNotices{}, strings.Split(text, "\n")) {
			for _, number := range []string{c.cid} {
				if strings.Trim(number, "0123456789") != "" || number == "" {
					t.Errorf("%q goes into commands", number)
				}
			}
			if remote, err := c.remote(); err == nil && (!remote.IsValid() || remote.Addr().Is4In6() || remote.Addr().Zone() != "") {
				t.Errorf("%v goes into the guard", remote)
			}
		}
	})
}

var statusLines = []string{
	"TITLE\tOpenVPN 2.6.14 x86_64-pc-linux-gnu", "TIME\t2026-11-21 04:53:17\t1795236797",
	"HEADER\tCLIENT_LIST\tCommon Name\tReal Address\tVirtual Address\tVirtual IPv6 Address\tBytes Received\tBytes Sent\tConnected Since\tConnected Since (time_t)\tUsername\tClient ID\tPeer ID\tData Channel Cipher",
	"CLIENT_LIST\talice\t192.0.2.2:40318\t10.77.0.2\tfd77::2\t205334\t204781\t2026-11-21 04:53:16\t1795236796\tUNDEF\t0\t0\tnone",
	"HEADER\tROUTING_TABLE\tVirtual Address\tCommon Name\tReal Address\tLast Ref\tLast Ref (time_t)",
	"ROUTING_TABLE\t10.77.0.2\talice\t192.0.2.2:40318\t2026-11-21 04:53:17\t1795236797",
	"GLOBAL_STATS\tMax bcast/mcast queue length\t0",
}

func TestParseStatus(t *testing.T) {
	got, err := parseStatus(statusLines)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]counters{"0": {received: 205334, sent: 204781}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(counters{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseStatus(statusLines[3:]); err == nil {
		t.Error("a list whose columns have no names was read")
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add(strings.Join(statusLines, "\n"))
	f.Add("HEADER\tCLIENT_LIST\tClient ID\nCLIENT_LIST")
	f.Fuzz(func(t *testing.T, text string) {
		clients, err := parseStatus(strings.Split(text, "\n"))
		if err != nil && clients != nil {
			t.Error("an answer and an error")
		}
		for cid := range clients {
			if !isNumber(cid) {
				t.Errorf("client %q", cid)
			}
		}
	})
}

func TestParseNotices(t *testing.T) {
	for text, want := range map[string]stateNotice{
		"1795236797,CONNECTED,SUCCESS,,192.0.2.1,1194,,": {"CONNECTED", "SUCCESS"},
		"1795236797,RECONNECTING,ping-restart,,,,,":      {"RECONNECTING", "ping-restart"},
		"1795236797,WAIT": {"WAIT", ""},
	} {
		if got, ok := parseState(text); !ok || got != want {
			t.Errorf("%q: %+v, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "1795236797", "1795236797,,x"} {
		if got, ok := parseState(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if in, out, ok := parseByteCount("12,34"); !ok || in != 12 || out != 34 {
		t.Errorf("byte count: %d %d %t", in, out, ok)
	}
	for _, text := range []string{"", "12", "12,", "-1,2", "1,2,3"} {
		if _, _, ok := parseByteCount(text); ok {
			t.Errorf("%q was taken for a byte count", text)
		}
	}
	for text, want := range map[string]string{
		"Verification Failed: 'Auth' ['not admitted']": "not admitted",
		"Verification Failed: 'Auth'":                  "no reason given",
	} {
		if got, ok := parseRefusal(text); !ok || got != want {
			t.Errorf("%q: %q, %t", text, got, ok)
		}
	}
	if reason, ok := parseRefusal("Need 'Auth' username/password"); ok {
		t.Errorf("a question was taken for a refusal: %q", reason)
	}
}

func TestPushed(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	got, err := pushed(prefixes("fd77::2/64", "10.77.0.2/22"))
	if want := "ifconfig-push 10.77.0.2 255.255.252.0\nifconfig-ipv6-push fd77::2/64 fd77::2\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range [][]netip.Prefix{
		nil, {{}}, prefixes("fd77::2/64"), prefixes("10.0.0.1/8", "10.0.0.2/8"), prefixes("::ffff:10.0.0.1/128"),
	} {
		if text, err := pushed(bad); err == nil {
			t.Errorf("%v became %q", bad, text)
		}
	}
}
