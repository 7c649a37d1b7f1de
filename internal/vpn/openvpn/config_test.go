package openvpn

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

var someFiles = Files{
	Certificate: "/etc/dcol/bob.crt", Key: "/etc/dcol/bob.key", CA: "/etc/dcol/ca.crt", CRL: "/etc/dcol/ca.crl",
}

func TestArguments(t *testing.T) {
	without := someFiles
	without.CRL = ""
	client := ClientConfig{Interface: "dcolov0", ServerName: "bob", Files: without, MTU: 1464}
	for name, args := range map[string][]string{
		"server": serverArguments(ServerConfig{Interface: "dcolov", Port: 1194, Files: someFiles, MTU: 1464}, "udp6", "/run/dcol/openvpn/management.sock"),
		"client": clientArguments(client, netip.MustParseAddrPort("192.0.2.1:1194")),
	} {
		got := lines(args)
		golden := filepath.Join("testdata", name+".args")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", name, diff)
		}
	}
}

// lines writes each option with its values to a line.
func lines(args []string) string {
	var b strings.Builder
	for _, arg := range args {
		if strings.HasPrefix(arg, "--") {
			b.WriteString("\n" + arg)
		} else {
			fmt.Fprintf(&b, " %q", arg)
		}
	}
	return strings.TrimPrefix(b.String(), "\n") + "\n"
}

func TestRemoteAddresses(t *testing.T) {
	for remote, want := range map[string]string{
		"[2001:db8::1]:1194":      `--remote "2001:db8::1" "1194" "udp6"`,
		"[::ffff:192.0.2.1]:1194": `--remote "192.0.2.1" "1194" "udp4"`,
	} {
		if got := lines(clientArguments(ClientConfig{}, netip.MustParseAddrPort(remote))); !strings.Contains(got, want+"\n") {
			t.Errorf("no line %q in:\n%s", want, got)
		}
	}
}

func TestMTU(t *testing.T) {
	for remote, want := range map[string]int{"192.0.2.1": 1464, "::ffff:192.0.2.1": 1464, "2001:db8::1": 1444} {
		if got := MTU(1500, netip.MustParseAddr(remote)); got != want {
			t.Errorf("to %s: %d, want %d", remote, got, want)
		}
	}
}
