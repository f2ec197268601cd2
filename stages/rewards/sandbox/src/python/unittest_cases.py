"""Runs the tests of unittest classes one by one."""

import unittest

from rollpacker_pytest_shim import Failed, Skipped


class Result(unittest.TestResult):
    """Records the first error, so that the test is torn down before the error is raised."""

    def __init__(self):
        super().__init__()
        self.found = None

    def keep(self, error):
        self.found = self.found or error

    def addError(self, test, error):
        self.keep(error[1])

    def addFailure(self, test, error):
        self.keep(error[1])

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.keep(error[1])

    def addSkip(self, test, reason):
        self.keep(Skipped(reason))

    def addExpectedFailure(self, test, error):
        self.keep(Skipped("an expected failure"))

    def addUnexpectedSuccess(self, test):
        self.keep(Failed("an unexpected success"))


class CaseTest:
    """A test method of a unittest class."""

    def __init__(self, owner, name):
        self.owner, self.method = owner, name
        self.name = "%s.%s" % (owner.__name__, name)

    def run(self, suite, following):
        """Runs the test, including the set-up and tear-down of its class where it begins and ends."""
        result = Result()
        if suite.entered is not self.owner:
            suite.entered = self.owner
            self.enter_class()
        self.owner(self.method).run(result)
        if getattr(following, "owner", None) is not self.owner:
            suite.entered = None
            if not self.is_class_skipped():
                self.owner.tearDownClass()
            self.owner.doClassCleanups()
        if result.found is not None:
            raise result.found

    def enter_class(self):
        """Sets up the class. If this skips, all tests of the class are skipped."""
        try:
            if not self.is_class_skipped():
                self.owner.setUpClass()
        except unittest.SkipTest as error:
            self.owner.__unittest_skip__, self.owner.__unittest_skip_why__ = True, str(error)

    def is_class_skipped(self):
        return getattr(self.owner, "__unittest_skip__", False)


def tests_of(owner):
    return [CaseTest(owner, name) for name in unittest.TestLoader().getTestCaseNames(owner)]
