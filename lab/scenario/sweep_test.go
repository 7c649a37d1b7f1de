package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A sweep makes a variant of every combination, with its changes and its place
// on each axis; variants of the file come before.
func TestSweep(t *testing.T) {
	s := parse(t, strings.Replace(minimal, `b = "server"`, `b = "server"
rate = "10mbit"
[[link]]
name = "2"
a = "client"
b = "server"
cost = 9
[[variant]]
name = "lossy"
[[variant.change]]
link = "1"
loss = "1%"
[[sweep]]
[[sweep.axis]]
description = "rate of both"
links = ["1", "2"]
key = "rate"
values = ["2.5 Mbit", "5mbit"]
[[sweep.axis]]
name = "detour"
links = ["2"]
key = "loss"
values = ["0%", "0.5%"]
[[sweep]]
[[sweep.axis]]
links = ["1"]
key = "queue"
values = ["10p", "100p"]
[[expect]]
description = "variants of sweeps have names"
that = 'median("tcp") > 1'
variants = ["rate-5mbit_detour-0.5"]`, 1))
	want := []string{
		"base", "lossy", "rate-2.5mbit_detour-0", "rate-2.5mbit_detour-0.5",
		"rate-5mbit_detour-0", "rate-5mbit_detour-0.5", "queue-10p", "queue-100p",
	}
	if diff := cmp.Diff(want, s.VariantNames()); diff != "" {
		t.Fatalf("variants (-want +got):\n%s", diff)
	}
	v, _ := s.Variant("rate-5mbit_detour-0.5")
	place := []Coordinate{{"rate", "rate of both", "Mbit/s", 5}, {"detour", "", "%", 0.5}}
	if diff := cmp.Diff(place, v.Coordinates); diff != "" {
		t.Errorf("coordinates (-want +got):\n%s", diff)
	}
	first, second := s.Shapes(v)[0], s.Shapes(v)[1]
	if *first.Rate != 5e6 || *second.Rate != 5e6 || first.Loss != nil || *second.Loss != 0.005 {
		t.Errorf("the links have become %+v and %+v", first, second)
	}
	queue, _ := s.Variant("queue-10p")
	if got := queue.Coordinates; len(got) != 1 || got[0].Value != 10 || got[0].Unit != "packets" {
		t.Errorf("coordinates of a queue: %v", got)
	}
}
