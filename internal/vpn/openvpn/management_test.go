package openvpn

import (
	"net/netip"
	"strings"
	"testing"
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
		nil, {{}}, prefixes("fd77::2/64"), prefixes("::ffff:10.0.0.1/128"),
	} {
		if text, err := pushed(bad); err == nil {
			t.Errorf("%v became %q", bad, text)
		}
	}
}
