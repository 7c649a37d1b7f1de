package track

import "testing"

// A subflow's change is known only from samples that cover most of the path.
func TestRTTChange(t *testing.T) {
	list := []RTTPeriod{{Mean: 0.02, Samples: 5}, {Mean: 0.07, Samples: 1}, {Mean: 0.03, Samples: 9}}
	near := []RTTPeriod{{Mean: 1e-5, Samples: 50}, {Mean: 2e-5, Samples: 50}}
	for name, c := range map[string]struct {
		subflow Subflow
		want    float64
	}{
		"at the server":     {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(0.03), RTTOverTime: list}, FromClient: Direction{RTT: pointer(1e-5), RTTOverTime: near}}, 0.05},
		"at a client":       {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(1e-5), RTTOverTime: near}}, -1},
		"data of the other": {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(1e-5), RTTOverTime: near}, FromClient: Direction{RTT: pointer(0.03), RTTOverTime: list}}, 0.05},
		"too short":         {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(0.03), RTTOverTime: list[:1]}}, -1},
		"no samples":        {Subflow{RTT: pointer(0.03)}, -1},
	} {
		got := c.subflow.change()
		if (got == nil) != (c.want < 0) || got != nil && (*got < c.want-1e-9 || *got > c.want+1e-9) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
