package experiment

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/report"
)

// A variant's place is what its sweep, its workload and the varied link say.
func TestCoordinates(t *testing.T) {
	s := parse(t, strings.Replace(tiny, `[workload]`, `[[variant]]
name = "large"
[variant.workload]
size = "20MB"
[[sweep]]
[[sweep.axis]]
description = "room"
links = ["1"]
key = "queue"
values = ["10p", "100p"]
[workload]`, 1))
	delay := report.Coordinate{Axis: "delay", Label: "delay of link 1", Unit: "ms", Value: 5}
	loss := report.Coordinate{Axis: "loss", Label: "loss on link 1", Unit: "%"}
	for _, test := range []struct {
		variant, varied string
		want            []report.Coordinate
	}{
		{"base", "", []report.Coordinate{}},
		{"slow", "1", []report.Coordinate{loss, delay}},
		{"large", "", []report.Coordinate{{Axis: "size", Label: "size", Unit: "KB", Value: 20000}}},
		{"queue-100p", "1", []report.Coordinate{{Axis: "queue", Label: "room", Unit: "packets", Value: 100}, loss, delay}},
	} {
		s.Varied = test.varied
		v, ok := s.Variant(test.variant)
		if !ok {
			t.Fatalf("no variant %s", test.variant)
		}
		if diff := cmp.Diff(test.want, coordinates(s, v)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.variant, diff)
		}
	}
}
