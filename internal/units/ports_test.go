package units

import "testing"

func TestPorts(t *testing.T) {
	table(t, []row[Ports]{
		{"80", Ports{80, 80}, "80"}, {"8000-8009", Ports{8000, 8009}, "8000-8009"}, {" 1 - 65535 ", Ports{1, 65535}, "1-65535"}, {"7-7", Ports{7, 7}, "7"},
	}, []string{"", "0", "65536", "9-8", "-8", "8-", "1-2-3", "http"})
	p := Ports{8000, 8009}
	if p.Len() != 10 || !p.Has(8000) || !p.Has(8009) || p.Has(7999) || p.Has(8010) {
		t.Errorf("%v has %d ports, or others", p, p.Len())
	}
}
