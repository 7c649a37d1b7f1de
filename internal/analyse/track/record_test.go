package track

import "testing"

// A subflow's change is known only from samples that cover most of the path.
func TestRTTChange(t *testing.T) {
	list := &RTTOverTime{0, 1, []float64{0.02, 0, 0.07, 0.03}, []uint32{5, 0, 1, 9}}
	near := &RTTOverTime{0, 1, []float64{1e-5, 2e-5}, []uint32{50, 50}}
	for name, c := range map[string]struct {
		subflow Subflow
		want    float64
	}{
		"at the server":     {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(0.03), RTTOverTime: list}, FromClient: Direction{RTT: pointer(1e-5), RTTOverTime: near}}, 0.05},
		"at a client":       {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(1e-5), RTTOverTime: near}}, -1},
		"data of the other": {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(1e-5), RTTOverTime: near}, FromClient: Direction{RTT: pointer(0.03), RTTOverTime: list}}, 0.05},
		"too short":         {Subflow{RTT: pointer(0.03), FromServer: Direction{RTT: pointer(0.03), RTTOverTime: &RTTOverTime{0, 1, []float64{0.02}, []uint32{5}}}}, -1},
		"no samples":        {Subflow{RTT: pointer(0.03)}, -1},
	} {
		got := c.subflow.change()
		if (got == nil) != (c.want < 0) || got != nil && (*got < c.want-1e-9 || *got > c.want+1e-9) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
