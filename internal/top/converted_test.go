package top

import (
	"net/netip"
	"strings"
	"testing"
)

// A converted connection is shown under the server that the program means, and found by the converter's member too.
func TestConvertedConnection(t *testing.T) {
	m, now := shown(1, 1)
	server := netip.MustParseAddrPort("198.51.100.77:8443")
	c := m.rows[0].conn
	c.Server, c.Converter = server, "gina"
	if got := rowDetail(&m.rows[0]); !strings.Contains(got, "converter of gina") || !strings.Contains(got, c.Remote.String()) {
		t.Errorf("the detail is %q", got)
	}
	for _, filter := range []string{"198.51.100.77", "gina"} {
		m.list.filter = filter
		if !m.list.shows(c) {
			t.Errorf("%q does not find it", filter)
		}
	}
	m.list.filter = ""
	if got := press(m, now, "down", "w"); len(got) != 1 || got[0] != (AskWhy{server}) {
		t.Errorf("w asks %v", got)
	}
}
