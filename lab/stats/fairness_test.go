package stats

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestJain(t *testing.T) {
	for _, test := range []struct {
		allocations []float64
		want        float64
	}{
		{[]float64{3, 3, 3}, 1},
		{[]float64{5, 0, 0, 0}, 0.25},
		{[]float64{1, 2, 3}, 36.0 / 42},
	} {
		if got := Jain(test.allocations); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("of %v: %v, want %v", test.allocations, got, test.want)
		}
	}
	if got := Jain([]float64{0, 0}); !math.IsNaN(got) {
		t.Errorf("of zeros: %v", got)
	}
}

func TestMaxMin(t *testing.T) {
	many := math.Inf(1)
	for _, test := range []struct {
		name       string
		limits     []float64
		capacities []float64
		allowed    [][]int
		want       []float64
	}{
		{"shared alike", []float64{many, many}, []float64{6, 4}, [][]int{{0, 1}, {0, 1}}, []float64{5, 5}},
		{"own limits", []float64{1, many, many}, []float64{9}, [][]int{{0}, {0}, {0}}, []float64{1, 4, 4}},
		{"who has few gets all of it", []float64{many, many}, []float64{2, 10}, [][]int{{0}, {0, 1}}, []float64{2, 10}},
		{"others give way", []float64{many, many, many}, []float64{6, 6}, [][]int{{0}, {0, 1}, {1}}, []float64{4, 4, 4}},
		{"levels", []float64{many, many, many, many}, []float64{2, 3, 20}, [][]int{{0}, {0}, {1}, {1, 2}}, []float64{1, 1, 3, 20}},
		{"nothing allowed", []float64{5, 5}, []float64{3}, [][]int{{}, {0}}, []float64{0, 3}},
		{"no users", nil, []float64{3}, nil, []float64{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := MaxMin(test.limits, test.capacities, test.allowed)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateApprox(1e-6, 0)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The rates can be carried, and of every user whose rate could be higher somebody with no more would get less. For
// that every user must have his limit, or belong to a set of users, none of whom has more than he, who use up all
// their resources.
func TestMaxMinInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		users, resources := rapid.IntRange(1, 6).Draw(t, "users"), rapid.IntRange(1, 5).Draw(t, "resources")
		limits := rapid.SliceOfN(rapid.Float64Range(0.1, 20), users, users).Draw(t, "limits")
		capacities := rapid.SliceOfN(rapid.Float64Range(0.1, 20), resources, resources).Draw(t, "capacities")
		allowed := make([][]int, users)
		for i := range allowed {
			for j := range resources {
				if rapid.Bool().Draw(t, "allowed") {
					allowed[i] = append(allowed[i], j)
				}
			}
		}
		rates := MaxMin(limits, capacities, allowed)
		most := func(set int) (room, sum float64) {
			used := make([]bool, resources)
			for i := range users {
				if set>>i&1 == 1 {
					sum += rates[i]
					for _, j := range allowed[i] {
						used[j] = true
					}
				}
			}
			for j := range used {
				if used[j] {
					room += capacities[j]
				}
			}
			return room, sum
		}
		const little = 1e-5
		held := make([]bool, users)
		for i := range users {
			held[i] = rates[i] >= limits[i]-little
			if rates[i] > limits[i]+little {
				t.Fatalf("%v is more than the limit %v", rates[i], limits[i])
			}
		}
		for set := 1; set < 1<<users; set++ {
			room, sum := most(set)
			if sum > room+little {
				t.Fatalf("users %b have %v of %v", set, sum, room)
			}
			if sum < room-little {
				continue
			}
			highest := 0.0
			for i := range users {
				if set>>i&1 == 1 {
					highest = max(highest, rates[i])
				}
			}
			for i := range users {
				if set>>i&1 == 1 && rates[i] >= highest-little {
					held[i] = true
				}
			}
		}
		for i := range users {
			if !held[i] {
				t.Fatalf("user %d could have more than %v of %v", i, rates, limits)
			}
		}
	})
}
