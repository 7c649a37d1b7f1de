package nft

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// held has the elements that this connection wrote or adopted, by table and set. It has none that rules add.
type held map[string]map[string]*heldSet

type heldSet struct {
	set   Set
	until map[string]time.Time // end of each element's life, by Element.held; zero: none
}

// change describes how one message of a transaction changes the elements of a set.
type change struct {
	table    string
	set      Set // without a name: all sets of the table
	clear    bool
	remove   bool // delete the elements, do not add them
	elements []Element
}

// aboutToExpire is the time before the end of an element's life during which it may be missing already.
const aboutToExpire = 2 * time.Second

func (h held) apply(c change, now time.Time) {
	switch {
	case c.set.Dynamic:
		return
	case c.set.Name == "":
		delete(h, c.table)
		return
	}
	if h[c.table] == nil {
		h[c.table] = make(map[string]*heldSet)
	}
	s := h[c.table][c.set.Name]
	if s == nil || c.clear {
		s = &heldSet{set: c.set, until: make(map[string]time.Time)}
		h[c.table][c.set.Name] = s
	}
	for _, e := range c.elements {
		_, there := s.until[e.held()]
		switch {
		case c.remove:
			delete(s.until, e.held())
		case !there: // an existing element keeps its lifetime
			s.until[e.held()] = end(now, e.Timeout)
		}
	}
	maps.DeleteFunc(s.until, func(_ string, until time.Time) bool { return passed(until, now) })
}

// held returns a key that differs for each element of a set.
func (e Element) held() string { return string(e.Key) + strconv.FormatBool(e.bound) }

func end(now time.Time, life time.Duration) time.Time {
	if life == 0 {
		return time.Time{}
	}
	return now.Add(life)
}

func passed(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// lacks reports whether an element is missing in a listing that was complete at the given time.
func (s *heldSet) lacks(listed []Element, at time.Time) bool {
	there := make(map[string]bool, len(listed))
	for _, e := range listed {
		there[e.held()] = true
	}
	for key, until := range s.until {
		if !there[key] && !passed(until, at.Add(aboutToExpire)) {
			return true
		}
	}
	return false
}

// Whole reports whether the table's sets still have the elements that this connection wrote or adopted, except those
// about to expire. It ignores elements that rules add.
func (c *Conn) Whole(t Table) (bool, error) {
	for _, s := range c.held[t.Name] {
		at := time.Now()
		listed, err := c.listOften(t, s.set)
		if err != nil {
			return false, err
		}
		if s.lacks(listed, time.Now()) {
			return false, nil
		}
		maps.DeleteFunc(s.until, func(_ string, until time.Time) bool { return passed(until, at) })
	}
	return true, nil
}

// adoptElements makes Whole expect the elements that the sets have now.
func (c *Conn) adoptElements(t Table, sets []Set) error {
	delete(c.held, t.Name)
	for _, s := range sets {
		listed, err := c.listOften(t, s)
		if err != nil {
			return err
		}
		for i := range listed {
			listed[i].Timeout = listed[i].Expires
		}
		c.held.apply(change{table: t.Name, set: s, elements: slices.Clone(listed)}, time.Now())
	}
	return nil
}
