package config

import (
	"regexp"
	"strings"
	"testing"
)

// The sample's table [[policy]] is valid when its comment signs are removed.
func TestSamplePolicy(t *testing.T) {
	_, table, ok := strings.Cut(Sample, "# [[policy]]\n")
	table, _, end := strings.Cut(table, "\n\n")
	if !ok || !end {
		t.Fatal("the sample has no such table")
	}
	table = regexp.MustCompile(`(?m)^# `).ReplaceAllString(table, "")
	c, err := Parse("sample", []byte(minimal+"[[policy]]\n"+table))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Policies) != 1 || c.Policies[0].Use != UseBackup {
		t.Errorf("got %+v", c.Policies)
	}
}
