package tshark

import (
	"os"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/detour-collective/dcol/internal/packet"
)

const ethernet = 14

func packets(t *testing.T, name string) (list [][]byte) {
	t.Helper()
	f, err := os.Open("../testdata/" + name + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return list
		}
		list = append(list, b[ethernet:])
	}
}

// golden returns what tshark 4.0.17 printed for a capture, with Arguments.
func golden(t *testing.T, name string) (rows []Row) {
	t.Helper()
	text, err := os.ReadFile("../testdata/" + name + ".tshark")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	for _, line := range lines[1:] {
		r, err := NewRow(names, line)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	return rows
}

// All fields of two captures, of versions 0 and 1, are the same as tshark's. Each field occurs in one of them.
func TestAsTshark(t *testing.T) {
	seen := map[string]bool{}
	for name, count := range map[string]int{"mptcp": 93, "mptcp0": 64} {
		list, rows := packets(t, name), golden(t, name)
		if len(list) != count || len(rows) != count {
			t.Fatalf("%s: %d packets, %d lines", name, len(list), len(rows))
		}
		for i, b := range list {
			p, err := packet.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range rows[i].Differences(p) {
				t.Errorf("%s, packet %d: %s", name, i+1, d)
			}
			for field, value := range rows[i] {
				seen[field] = seen[field] || value != ""
			}
		}
	}
	for _, name := range Names() {
		if !seen[name] && !strings.HasPrefix(name, "tcp.options.sack_") {
			t.Errorf("no packet has %s", name)
		}
	}
}

// A difference in any field is found.
func TestDifferences(t *testing.T) {
	list, rows := packets(t, "mptcp"), golden(t, "mptcp")
	for i, b := range list {
		p, err := packet.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range Names() {
			rows[i][name] += "7"
			if d := rows[i].Differences(p); len(d) != 1 || !strings.HasPrefix(d[0], name+" is ") {
				t.Fatalf("packet %d with another %s: %q", i+1, name, d)
			}
			rows[i][name] = strings.TrimSuffix(rows[i][name], "7")
		}
	}
	if _, err := NewRow([]string{"a", "b"}, "1"); err == nil {
		t.Error("a line that is too short was read")
	}
}
