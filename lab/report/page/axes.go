package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
)

// axis is a property in which a network's variants differ, with the values that occur,
// ascending.
type axis struct {
	name, label, unit string
	values            []float64
}

// title returns the axis's name, with the unit unless it stands at the values.
func (a axis) title() string {
	label := a.label
	if label == "" {
		label = a.name
	}
	if a.unit == kilobytes {
		return label
	}
	label, remark, remarked := strings.Cut(label, ";")
	label = fmt.Sprintf("%s, %s", label, a.unit)
	if remarked { // the remark is not about the unit
		label += " (" + strings.TrimSpace(remark) + ")"
	}
	return label
}

// kilobytes is a unit that is converted for readability: 100000 KB are 100 MB.
const kilobytes = "KB"

// tick returns the label of a value.
func (a axis) tick(v float64) string {
	switch {
	case a.unit == kilobytes && v >= 1000:
		v /= 1000
		return number(&v) + " MB"
	case a.unit == kilobytes:
		return number(&v) + " KB"
	default:
		return number(&v)
	}
}

func (a axis) labels() []string {
	labels := make([]string, len(a.values))
	for i, v := range a.values {
		labels[i] = a.tick(v)
	}
	return labels
}

// axes returns the axes of a sweep, with two values or more each. It returns none unless all variants
// lie on the axes, except the network as declared, and there is one for each combination of values. It
// also returns none for a network with published numbers, whose plots show those.
func (n *network) axes() []axis {
	if n.published() {
		return nil
	}
	var axes []axis
	placed := 0
	for _, v := range n.variants {
		if len(v.Coordinates) == 0 && v.Name == baseVariant {
			continue
		}
		placed++
		for _, c := range v.Coordinates {
			at := slices.IndexFunc(axes, func(a axis) bool { return a.name == c.Axis })
			if at < 0 {
				at = len(axes)
				axes = append(axes, axis{name: c.Axis, label: c.Label, unit: c.Unit})
			}
			if !slices.Contains(axes[at].values, c.Value) {
				axes[at].values = append(axes[at].values, c.Value)
			}
		}
	}
	axes = slices.DeleteFunc(axes, func(a axis) bool { return len(a.values) < 2 })
	combinations := 1
	for i := range axes {
		slices.Sort(axes[i].values)
		combinations *= len(axes[i].values)
	}
	if len(axes) > 2 || combinations != placed {
		return nil
	}
	return axes
}

// variantAt returns the first variant with these coordinates.
func (n *network) variantAt(at map[string]float64) (report.Variant, bool) {
	for _, v := range n.variants {
		fits := 0
		for name, value := range at {
			if c := coordinate(v, name); c != nil && *c == value {
				fits++
			}
		}
		if fits == len(at) {
			return v, true
		}
	}
	return report.Variant{}, false
}
