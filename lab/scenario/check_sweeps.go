package scenario

import (
	"fmt"
	"slices"
	"strings"
)

// maxSwept limits the variants of one sweep. More are probably a mistake, and take days to run.
const maxSwept = 1000

// sweeps checks the sweeps and returns the variants of the valid ones.
func (c *checker) sweeps() []Variant {
	var all []Variant
	seen := map[string]bool{Base: true}
	for _, v := range c.Variants {
		seen[v.Name] = true
	}
	for i, s := range c.Sweeps {
		path := fmt.Sprintf("sweep[%d]", i)
		if !c.axes(path, s.Axes) {
			continue
		}
		variants, err := s.variants()
		if err != nil {
			c.report(path, "%v", err) // cannot happen: every axis was checked before
			continue
		}
		for _, v := range variants {
			c.unique(path, v.Name, seen)
			if !c.swept(path, v) {
				break // further variants have the same problem
			}
		}
		all = append(all, variants...)
	}
	return all
}

// swept reports whether a variant of a sweep is valid: its name, and each link's shape.
func (c *checker) swept(path string, v Variant) bool {
	if !plainName.MatchString(v.Name) {
		c.report(path, "makes a variant %q, which is not a name; %s, not more than 63", v.Name, plainNameForm)
		return false
	}
	for _, shape := range c.Shapes(v) {
		if !c.shape(path, shape) {
			return false
		}
	}
	return true
}

// axes reports whether a sweep's axes are valid, each alone and together.
func (c *checker) axes(path string, axes []Axis) bool {
	if len(axes) == 0 {
		c.report(path, "varies nothing; say what with [[sweep.axis]]")
		return false
	}
	sound, product, names, varied := true, 1, map[string]bool{}, map[string]bool{}
	for i, a := range axes {
		at := fmt.Sprintf("%s.axis[%d]", path, i)
		sound = c.axis(at, a) && sound
		if names[a.Name] {
			c.report(at+".name", "%q is taken; give every axis its own", a.Name)
			sound = false
		}
		names[a.Name] = true
		for _, link := range a.Links {
			if what := a.Key + " of link " + link; varied[what] {
				c.report(at+".links", "the %s is varied already", what)
				sound = false
			} else {
				varied[what] = true
			}
		}
		product *= max(1, len(a.Values))
	}
	if product > maxSwept {
		c.report(path, "its axes make %d variants; at most %d can be meant", product, maxSwept)
		return false
	}
	return sound
}

// axis reports whether one axis is valid.
func (c *checker) axis(path string, a Axis) bool {
	sound := oneOf(c.problems, path+".key", a.Key, PropertyKeys()...)
	if a.Name != "" && !plainName.MatchString(a.Name) {
		c.report(path+".name", "%q is not a name; %s", a.Name, plainNameForm)
		sound = false
	}
	if len(a.Links) == 0 {
		c.report(path+".links", "is missing; it names the links to vary: %s", list(c.linkNames()))
		sound = false
	}
	for _, link := range a.Links {
		sound = c.known(path+".links", link, "link", c.linkNames()) && sound
	}
	return c.values(path+".values", a) && sound
}

// values reports whether an axis has at least two values, all different and in the same unit.
func (c *checker) values(path string, a Axis) bool {
	if len(a.Values) < 2 {
		c.report(path, "an axis needs at least two values")
		return false
	}
	if !slices.Contains(PropertyKeys(), a.Key) {
		return false // of what, is unknown
	}
	sound, unit, seen := true, "", []float64{}
	for _, text := range a.Values {
		_, value, in, err := parseProperty(a.Key, text)
		switch {
		case err != nil:
			c.report(path, "%v", err)
			sound = false
			continue
		case unit != "" && in != unit:
			c.report(path, "%q is in %s and others in %s; use one of them", text, in, unit)
			sound = false
		case slices.Contains(seen, value):
			c.report(path, "%q is there twice", strings.TrimSpace(text))
			sound = false
		}
		unit, seen = in, append(seen, value)
	}
	return sound
}
