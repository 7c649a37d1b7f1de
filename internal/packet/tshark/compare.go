package tshark

import (
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
)

// Arguments returns the arguments that make tshark print the fields of a capture: a line of names, then one line for
// each packet.
func Arguments(file string) []string {
	args := []string{
		"-n", "-r", file, "-o", "tcp.relative_sequence_numbers:FALSE",
		"-T", "fields", "-E", "header=y", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=,",
	}
	for _, name := range Names() {
		args = append(args, "-e", name)
	}
	return args
}

// Row has the fields that tshark printed for a packet, by name.
type Row map[string]string

// NewRow parses a line. names are those in the first line.
func NewRow(names []string, line string) (Row, error) {
	values := strings.Split(line, "\t")
	if len(values) != len(names) {
		return nil, fmt.Errorf("a line of %d fields, where the header has %d", len(values), len(names))
	}
	r := Row{}
	for i, name := range names {
		r[name] = values[i]
	}
	return r, nil
}

// IsTCP reports whether the packet itself has a TCP header, not only a packet that it quotes.
func (r Row) IsTCP() bool { return r["tcp.srcport"] != "" && !strings.Contains(r["tcp.srcport"], ",") }

// Differences compares the fields of a TCP packet with tshark's. Each difference is a sentence.
func (r Row) Differences(p *packet.Packet) (list []string) {
	got, err := Of(p)
	if err != nil {
		list = append(list, err.Error())
	}
	for _, name := range Names() {
		want, known := r[name]
		if name == "tcp.option_kind" {
			for strings.HasSuffix(want, ",0,0") { // tshark also prints the padding after the end of the options
				want = strings.TrimSuffix(want, ",0")
			}
		}
		if known && got[name] != want {
			list = append(list, fmt.Sprintf("%s is %q, and %q by tshark", name, got[name], want))
		}
	}
	return list
}
