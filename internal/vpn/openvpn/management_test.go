package openvpn

import (
	"net/netip"
	"slices"
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

// The answer to "status 3" of OpenVPN 2.6.14. Alice connects for the third time.
const statusText = "TITLE\tOpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)] [LZO] [LZ4] [EPOLL] [PKCS11] [MH/PKTINFO] [AEAD] [DCO]\n" +
	"TIME\t2026-11-22 22:17:38\t1795385858\n" +
	statusHeader +
	"CLIENT_LIST\talice\t192.0.2.2:32811\t10.77.0.2\tfd77::2\t1884\t2184\t2026-11-22 22:22:25\t1795386145\tUNDEF\t2\t0\tnone\n" +
	"CLIENT_LIST\tcarol\t198.51.100.2:58493\t\t\t1743\t1748\t2026-11-22 22:17:38\t1795385858\tUNDEF\t1\t1\tnone\n" +
	"HEADER\tROUTING_TABLE\tVirtual Address\tCommon Name\tReal Address\tLast Ref\tLast Ref (time_t)\n" +
	"ROUTING_TABLE\t10.77.0.2\talice\t192.0.2.2:47520\t2026-11-22 22:17:38\t1795385858\n" +
	"ROUTING_TABLE\tfd77::2\talice\t192.0.2.2:47520\t2026-11-22 22:17:38\t1795385858\n" +
	"GLOBAL_STATS\tMax bcast/mcast queue length\t0\n" +
	"GLOBAL_STATS\tdco_enabled\t0\n" +
	"END"

const statusHeader = "HEADER\tCLIENT_LIST\tCommon Name\tReal Address\tVirtual Address\tVirtual IPv6 Address\tBytes Received\tBytes Sent\tConnected Since\tConnected Since (time_t)\tUsername\tClient ID\tPeer ID\tData Channel Cipher\n"

// readStatus returns the lines with a meaning.
func readStatus(text string) (rows []statusRow) {
	var r statusReader
	for line := range strings.SplitSeq(text, "\n") {
		if row := r.add(line); row != (statusRow{}) {
			rows = append(rows, row)
		}
	}
	return rows
}

func TestStatus(t *testing.T) {
	end := statusRow{end: true}
	for name, test := range map[string]struct {
		text string
		want []statusRow
	}{
		"recorded":                {statusText, []statusRow{{cid: "2", peer: 0}, {cid: "1", peer: 1}, end}},
		"twice":                   {"END\n" + statusText, []statusRow{end, {cid: "2", peer: 0}, {cid: "1", peer: 1}, end}},
		"other columns":           {"HEADER\tCLIENT_LIST\tPeer ID\tx\tClient ID\nCLIENT_LIST\t9\t\t8\nEND", []statusRow{{cid: "8", peer: 9}, end}},
		"highest":                 {"HEADER\tCLIENT_LIST\tClient ID\tPeer ID\nCLIENT_LIST\t8\t16777214", []statusRow{{cid: "8", peer: 1<<24 - 2}}},
		"a client without number": {"HEADER\tCLIENT_LIST\tClient ID\tPeer ID\nCLIENT_LIST\t8\t16777215", nil},
		"not 24 bits":             {"HEADER\tCLIENT_LIST\tClient ID\tPeer ID\nCLIENT_LIST\t8\t16777216", nil},
		"no numbers":              {"HEADER\tCLIENT_LIST\tClient ID\tPeer ID\nCLIENT_LIST\t8\t-1\nCLIENT_LIST\tx\t1\nCLIENT_LIST\t\t1", nil},
		"no such columns":         {"HEADER\tCLIENT_LIST\tClient ID\tCipher\nCLIENT_LIST\t8\t1\nEND", []statusRow{end}},
		"no header":               {"CLIENT_LIST\t8\t1\nCLIENT_LIST\nEND", []statusRow{end}},
		"header of one before":    {"HEADER\tCLIENT_LIST\tClient ID\tPeer ID\nEND\nCLIENT_LIST\t8\t1", []statusRow{end}},
		"a tab in a name":         {"HEADER\tCLIENT_LIST\tName\tClient ID\tPeer ID\nCLIENT_LIST\tx\t7\t7\t8\t1\n", nil},
		"a line that is cut":      {statusHeader + "CLIENT_LIST\talice\t192.0.2.2:47520\t10.77.0.2", nil},
		"other lines":             {"\n\t\nHEADER\nHEADER\tROUTING_TABLE\tClient ID\tPeer ID\nROUTING_TABLE\t1\t2", nil},
	} {
		if got := readStatus(test.text); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(statusText)
	f.Add("HEADER\tCLIENT_LIST\tPeer ID\tClient ID\nCLIENT_LIST\t1\t2\nEND\nCLIENT_LIST\t1\t2")
	f.Add("HEADER\tCLIENT_LIST\nCLIENT_LIST\nHEADER")
	f.Fuzz(func(t *testing.T, text string) {
		for _, row := range readStatus(text) {
			if !row.end && (row.cid == "" || strings.Trim(row.cid, "0123456789") != "" || row.peer >= noPeer) {
				t.Errorf("%+v goes into the guard", row)
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
