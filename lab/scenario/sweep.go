package scenario

import (
	"fmt"
	"strings"
)

// Sweep varies properties of links over a grid. Each combination of its axes' values is a variant of the scenario.
type Sweep struct {
	Axes []Axis `toml:"axis"`
}

// Axis is a property of one or more links, and its values.
type Axis struct {
	// Name precedes the value in the variants' names.
	Name string `toml:"name"`
	// Description describes the axis in words, for the labels of plots.
	Description string `toml:"description"`
	// Links are the links whose property is set, in both directions.
	Links  []string `toml:"links"`
	Key    string   `toml:"key"`
	Values []string `toml:"values"`
}

// Coordinate is a variant's position on one axis.
type Coordinate struct {
	Axis  string  `json:"axis"`
	Label string  `json:"label"` // the axis in words; may be empty
	Unit  string  `json:"unit"`  // of Value
	Value float64 `json:"value"`
}

// point is one value of an axis.
type point struct {
	name   string // part of the variant's name: rate-2.5mbit
	params Params
	at     Coordinate
}

// points reads the axis's values, in their order. An error describes the first bad one.
func (a Axis) points() ([]point, error) {
	points := make([]point, len(a.Values))
	for i, text := range a.Values {
		params, value, unit, err := parseProperty(a.Key, text)
		if err != nil {
			return nil, err
		}
		points[i] = point{a.Name + "-" + valueName(text), params, Coordinate{a.Name, a.Description, unit, value}}
	}
	return points, nil
}

// valueName returns a value for use in names, without a percent sign.
func valueName(text string) string {
	return strings.ToLower(strings.TrimSuffix(strings.ReplaceAll(text, " ", ""), "%"))
}

// parseProperty reads the value of a link's property. value is the same as a number in unit, as for plots.
func parseProperty(key, text string) (p Params, value float64, unit string, err error) {
	for _, property := range properties {
		if property.key == key {
			value, err = property.read(&p, text)
			unit = property.unit
		}
	}
	switch {
	case err != nil:
	case p.Queue != nil && p.Queue.Packets > 0:
		unit = "packets"
	case p.Rate != nil && *p.Rate == 0:
		err = fmt.Errorf("%q has no place on an axis; give a rate", text)
	}
	return p, value, unit, err
}

// variants returns the combinations of the axes' values. The last axis varies fastest: rate-5mbit_delay-10ms,
// rate-5mbit_delay-30ms and so on.
func (s Sweep) variants() ([]Variant, error) {
	made := []Variant{{}}
	for _, axis := range s.Axes {
		points, err := axis.points()
		if err != nil {
			return nil, err
		}
		var next []Variant
		for _, v := range made {
			for _, p := range points {
				next = append(next, v.with(axis.Links, p))
			}
		}
		made = next
	}
	return made, nil
}

// with returns the variant moved to a point on one more axis.
func (v Variant) with(links []string, p point) Variant {
	moved := Variant{
		Name:        p.name,
		Coordinates: append(v.Coordinates[:len(v.Coordinates):len(v.Coordinates)], p.at),
		Changes:     v.Changes[:len(v.Changes):len(v.Changes)],
	}
	if v.Name != "" {
		moved.Name = v.Name + "_" + p.name
	}
	for _, link := range links {
		moved.Changes = append(moved.Changes, Change{Link: link, Shape: Shape{Params: p.params}})
	}
	return moved
}
