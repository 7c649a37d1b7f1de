package dissect

import (
	"os/exec"
	"testing"

	"github.com/detour-collective/dcol/internal/packet/tshark"
)

// The tshark of this machine, and captures of both versions.
func TestCompare(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs the program tshark")
	}
	for name, want := range map[string]Result{
		"mptcp":  {Packets: 93, MPTCP: 90, Connections: 4},
		"mptcp0": {Packets: 64, MPTCP: 57, Connections: 2},
	} {
		r, err := Compare(t.Context(), "../../internal/packet/testdata/"+name+".pcap")
		if err != nil {
			t.Fatal(err)
		}
		if r.Packets != want.Packets || r.MPTCP != want.MPTCP || r.Connections != want.Connections {
			t.Errorf("%s: %d packets, %d with MPTCP, %d connections", name, r.Packets, r.MPTCP, r.Connections)
		}
		for _, d := range r.Differences {
			t.Errorf("%s: %s", name, d)
		}
		if r.Fields["tcp.options.mptcp.rawdataseqno"] == 0 || r.Fields["mptcp.expected_token"] == 0 {
			t.Errorf("%s: %v", name, r.Fields)
		}
	}
	if _, err := Compare(t.Context(), "dissect.go"); err == nil {
		t.Error("a text was compared")
	}
}

// The capture has four connections. tshark's part here is one of them: what differs in it counts on both sides.
func TestConnectionsDiffer(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(s *stream)
		differing int
	}{
		"as captured":   {func(*stream) {}, 3},
		"another token": {func(s *stream) { s.tokens[0] = "1" }, 5},
		"another port":  {func(s *stream) { s.ends += "7" }, 5},
		"no connection": {func(s *stream) { s.connection = "" }, 4},
	} {
		r, theirs := new(Result), grouping{}
		theirs.add(tshark.Row{
			streamField: "0", connectionField: "0", "ip.src": "10.0.1.1", "tcp.srcport": "47076", "ip.dst": "10.0.1.2", "tcp.dstport": "8000",
			"mptcp.expected_token": "1225116057",
		})
		theirs.add(tshark.Row{streamField: "0", "mptcp.expected_token": "402441152"})
		test.change(theirs["0"])
		if err := r.connections(t.Context(), "../../internal/packet/testdata/mptcp.pcap", theirs); err != nil {
			t.Fatal(err)
		}
		if r.Differing != test.differing {
			t.Errorf("%s: %d differences: %q", name, r.Differing, r.Differences)
		}
	}
}
