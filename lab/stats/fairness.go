package stats

// Jain returns Jain's fairness index of allocations: 1 if all are equal, 1/n if one has everything (Jain, Chiu and
// Hawe, 1984). It returns NaN if there are no allocations or all are zero.
func Jain(allocations []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range allocations {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(allocations)) * squares)
}

// MaxMin returns the max-min fair rates of users that may each send over several resources at once: nobody's rate can
// be raised without lowering that of somebody who has no more. limits are the users' own limits, capacities those of
// the resources, and allowed[i] are the resources that user i may use.
//
// It raises all rates together. As soon as some users have all that their limits and resources give them, their rates
// are final, and the others' rise further (progressive filling; Bertsekas and Gallager, 1992, section 6.5).
func MaxMin(limits, capacities []float64, allowed [][]int) []float64 {
	rates := make([]float64, len(limits))
	final := make([]bool, len(limits))
	for left := len(limits); left > 0; {
		level, full := highestLevel(limits, capacities, allowed, rates, final)
		for i := range rates {
			if !final[i] && full[i] {
				rates[i], final[i] = level, true
				left--
			}
		}
	}
	return rates
}

// highestLevel returns the highest common rate of the users whose rates are not final, and the users that nothing is
// left for at that rate. A set of users cannot have more than what a cut between them and their resources lets
// through. From any level that is too high, the least cut gives a lower level, which is still not too low. So the
// levels fall until one is possible (Dinkelbach's method).
func highestLevel(limits, capacities []float64, allowed [][]int, rates []float64, final []bool) (level float64, full []bool) {
	level = 1 // with all capacities: too high for anybody
	for _, c := range capacities {
		level += c
	}
	for i, limit := range limits {
		if !final[i] {
			level = min(level, limit)
		}
	}
	full = make([]bool, len(limits))
	for i, limit := range limits {
		full[i] = !final[i] && limit <= level
	}
	for {
		demands := make([]float64, len(limits))
		for i := range demands {
			demands[i] = level
			if final[i] {
				demands[i] = rates[i]
			}
		}
		short, room := shortest(demands, capacities, allowed)
		if short == nil {
			return level, full
		}
		rising := 0
		for i := range short {
			switch {
			case !short[i]:
			case final[i]:
				room -= rates[i]
			default:
				rising++
			}
		}
		level, full = room/float64(rising), short
	}
}

// tolerance is the relative difference of two rates that is attributed to rounding.
const tolerance = 1e-9

// shortest returns the users whose demands exceed their resources together, and the capacity of these resources; or
// nil if all demands can be met.
func shortest(demands, capacities []float64, allowed [][]int) (short []bool, room float64) {
	f := newFlow(demands, capacities, allowed)
	if f.run() {
		return nil, 0
	}
	// Users that still want something, and all that could give way to them, are on one side of the least cut.
	users, resources := f.reachable()
	for j := range resources {
		if resources[j] {
			room += capacities[j]
		}
	}
	return users, room
}

// flow is a maximum flow from users to resources (Ford and Fulkerson).
type flow struct {
	wanted  []float64   // that users still want
	spare   []float64   // that resources still have
	carried [][]float64 // by user and resource
	allowed [][]int
	little  float64 // counts as nothing
}

func newFlow(demands, capacities []float64, allowed [][]int) *flow {
	f := &flow{wanted: append([]float64{}, demands...), spare: append([]float64{}, capacities...), allowed: allowed}
	total := 0.0
	for _, d := range demands {
		f.carried = append(f.carried, make([]float64, len(capacities)))
		total += d
	}
	f.little = tolerance * total
	return f
}

// run fills the resources and reports whether all demands are met.
func (f *flow) run() bool {
	met := true
	for i := range f.wanted {
		for f.wanted[i] > f.little && f.augment(i) {
		}
		met = met && f.wanted[i] <= f.little
	}
	return met
}

// augment carries more of a user's demand, if others can give way, on a shortest path. It reports whether it did.
func (f *flow) augment(user int) bool {
	users, resources, order := f.search(user)
	for _, j := range order {
		if f.spare[j] <= f.little {
			continue
		}
		amount := min(f.wanted[user], f.spare[j])
		for at := j; ; {
			i := resources[at]
			if i == user {
				break
			}
			at = users[i]
			amount = min(amount, f.carried[i][at])
		}
		f.wanted[user] -= amount
		f.spare[j] -= amount
		for at := j; ; {
			i := resources[at]
			f.carried[i][at] += amount
			if i == user {
				return true
			}
			at = users[i]
			f.carried[i][at] -= amount
		}
	}
	return false
}

const none = -1

// search looks for resources from which a user could get more, the nearest first. resources[j] is the user who would
// use more of j, and users[i] the resource of which user i would use less; or none.
func (f *flow) search(from int) (users, resources, order []int) {
	users, resources = make([]int, len(f.wanted)), make([]int, len(f.spare))
	for i := range users {
		users[i] = none
	}
	for j := range resources {
		resources[j] = none
	}
	seen := make([]bool, len(users))
	seen[from] = true
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, j := range f.allowed[queue[0]] {
			if resources[j] != none {
				continue
			}
			resources[j] = queue[0]
			order = append(order, j)
			for i := range users {
				if !seen[i] && f.carried[i][j] > f.little {
					seen[i], users[i] = true, j
					queue = append(queue, i)
				}
			}
		}
	}
	return users, resources, order
}

// reachable returns the users and resources that would have to give way to users who still want something.
func (f *flow) reachable() (users, resources []bool) {
	users, resources = make([]bool, len(f.wanted)), make([]bool, len(f.spare))
	for i := range f.wanted {
		if f.wanted[i] <= f.little {
			continue
		}
		users[i] = true
		others, found, _ := f.search(i)
		for k, through := range others {
			users[k] = users[k] || through != none
		}
		for j, by := range found {
			resources[j] = resources[j] || by != none
		}
	}
	return users, resources
}
