package topology

import (
	"errors"
	"strings"
	"testing"
)

// TestNodeLink: reading a graph of NetworkX gives the same as a list of links, except that hosts do not forward.
func TestNodeLink(t *testing.T) {
	n := read(t, `{"directed": false, "multigraph": true, "graph": {"name": "a diamond"},
		"nodes": [{"id": 1, "host": true}, {"id": "a"}, {"id": "b", "host": true}, {"id": "c"}, {"id": 2, "host": true}],
		"edges": [{"source": 1, "target": "a", "key": 0}, {"source": 1, "target": "b"}, {"source": "a", "target": 2, "weight": 3},
			{"source": "b", "target": 2}, {"source": 1, "target": "c"}, {"source": "c", "target": 2}, {"source": "a", "target": 2},
			{"source": 1, "target": 2, "down": true}]}`)
	c := n.Calibrate(32, []int{n.Node("1"), n.Node("2")})
	if c.Nodes != 5 || c.Links != 6 || c.Pairs != 2 || c.Paths[2] != 2 || c.MostPaths != 2 {
		t.Errorf("%+v", c)
	}
}

func TestBadGraphs(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                                     "node-link form",
		`{"nodes": [], "links": []}`:            "with 1 to",
		`{"nodes": [{"id": ""}]}`:               "has no id",
		`{"nodes": [{"id": "a"}, {"id": "a"}]}`: "listed twice",
		`{"nodes": [{"id": "a"}], "links": [{"source": "a"}]}`:                                           "does not join two",
		`{"nodes": [{"id": "a", "addresses": ["10.0.0.256"]}]}`:                                          "node-link form",
		`{"nodes": [{"id": "a"}], "links": [{"source": [1]}]}`:                                           "node-link form",
		`{"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b", "weight": -1}]}`: "above 0",
	} {
		if _, err := ReadGraph(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	endless := strings.NewReader(`{"nodes": [{"id": "` + strings.Repeat("a", maxGraph) + `"}]}`)
	if _, err := ReadGraph(endless); !errors.Is(err, ErrGraph) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("an endless graph: %v", err)
	}
}

func FuzzReadGraph(f *testing.F) {
	f.Add(`{"nodes": [{"id": 1, "host": true, "addresses": ["10.0.0.1"]}, {"id": "a"}], "edges": [{"source": 1, "target": "a", "weight": 2}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ReadGraph(strings.NewReader(text))
		if err == nil && len(g.Nodes) < 100 {
			g.Network().Calibrate(32, nil)
		}
	})
}
